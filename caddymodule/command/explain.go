package command

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var explainCommand = entry{
	use:   "explain [--key KEY | --key-id ID | --user USER] --method GET --path /x --ip ADDRESS",
	short: "Shows what the policy does with a request, and why",
	long: `Shows what the policy does with a request, and why: the user and the tier, the bans, each rule
and why it applies or not, and of each limit the amount, where the amount comes from and what
is left. The rules are matched by the code of the proxies. Nothing is charged. Zones in the
configurations of proxies are not part of the policy.`,
	example: `  caddy pg-ratelimit explain --user acme --method GET --path /api/v1/x --ip 192.0.2.1
  caddy pg-ratelimit explain --key-id 7 --path /api/v1/x

  # a key, without leaving it in the history of the shell
  caddy pg-ratelimit explain --key - --path /api/v1/x < key.txt

  # what will be on Black Friday
  caddy pg-ratelimit explain --user acme --path / --at 2026-11-27`,
	flags: []flag{
		{name: "key", value: "", read: aSecret, usage: `API key, or "-" to read it from standard input`},
		aKey("API key by its number"),
		{name: "user", value: "", usage: "user that the proxy authenticated"},
		{name: "tier", value: "anonymous", usage: "tier of requests without a user"},
		{name: "unknown-key", value: "reject", usage: "what proxies do with unknown keys: reject or anonymous", choices: []string{"reject", "anonymous"}},
		{name: "method", value: "GET", usage: "method"},
		{name: "path", value: "/", usage: "path, as it is sent"},
		{name: "host", value: "", usage: "host"},
		{name: "ip", value: "", read: anAddress, usage: "address of the client (default " + admin.AssumedAddress.String() + ", which the output then says)"},
		{name: "route", value: "", usage: "name of the route, as the configuration of the proxy sets it"},
		{name: "header", value: []string(nil), usage: `header of the request, as in "X-Tenant: blue"`},
		{name: "at", value: "", read: aTime, usage: "when the request comes (default now)"},
	},
	alone: []string{"key key-id user"},
	do: func(c *call) error {
		r, err := c.request()
		if err != nil {
			return err
		}
		e, err := c.db.Explain(c.ctx, r)
		return show(c, e, err, addExplanation)
	},
}

// request is the request that the flags of explain describe.
func (c *call) request() (*admin.Request, error) {
	r := &admin.Request{
		Key: get[string](c, "key"), KeyID: get[int64](c, "key-id"), User: c.text("user"), Tier: c.text("tier"), AllowUnknown: c.text("unknown-key") == "anonymous",
		Address: get[netip.Addr](c, "ip"), At: get[time.Time](c, "at"), Method: strings.ToUpper(c.text("method")), Host: c.text("host"), Route: c.text("route"), Header: http.Header{},
	}
	if path := c.text("path"); !strings.HasPrefix(path, "/") {
		return nil, &ratelimit.FieldError{Field: "--path", Value: path, Want: "a path that begins with a slash"}
	}
	r.Path, _, _ = strings.Cut(c.text("path"), "?")
	for _, header := range c.texts("header") {
		name, value, found := strings.Cut(header, ":")
		if !found || strings.TrimSpace(name) == "" {
			return nil, &ratelimit.FieldError{Field: "--header", Value: strings.TrimSpace(name), Want: `a name and a value, as in "X-Tenant: blue"`}
		}
		r.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return r, nil
}

func addExplanation(p *page, e *admin.Explanation) {
	facts := row{"result", e.Text(), "at", e.At}
	tier, address := text(e.Tier), e.Address
	if e.Key != nil {
		key := e.Key.State
		if e.Key.ID != 0 {
			key = "key " + cell(e.Key.ID) + ", " + key
		} else if e.Key.Hint != nil {
			key = text(*e.Key.Hint) + ", " + key
		}
		facts = append(facts, "key", key)
		if e.Key.Tier != nil && *e.Key.Tier == e.Tier {
			tier += ", of the key"
		}
	}
	if e.AddressAssumed {
		address += " (assumed, because --ip is not given)"
	}
	p.facts(append(facts, "user", or(e.User, "nobody"), "tier", tier, "address", address, "path", e.Path))
	addSection(p, "Bans", e.Bans, banRow)
	p.print("\nRules\n")
	addList(p, e.Rules, fields[admin.Row]("RULE name, ACTION action, FAMILY family, PRIORITY priority, APPLIES applies, WHY why"),
		"There are no rules.")
	addSection(p, "Limits", e.Limits, explainedRow)
}

func explainedRow(l *admin.ExplainedLimit) row {
	cost := cell(l.Cost)
	if l.Settle != "" {
		cost += ", then " + text(l.Settle)
	}
	return row{
		"LIMIT", l.Rule + "/" + l.Limit, "COUNTED FOR", l.Key, "AMOUNT", or(l.Quota, "unlimited"), "FROM", "the " + l.AmountFrom,
		"WINDOW", window(l.Seconds, l.Calendar), "ALGORITHM", l.Algorithm, "COST", cost, "LEFT", l.Left, "RESETS", l.Reset, "WOULD", would(l),
	}
}

// would says what a limit would do with the request now.
func would(l *admin.ExplainedLimit) string {
	does := "pass"
	if !l.Passes {
		does = "refuse"
		if l.RetryAfter != nil {
			does += ", again in " + span(*l.RetryAfter)
		}
	}
	switch {
	case l.Shadow:
		does += " (shadow)"
	case l.Overage && l.Left != nil && *l.Left < l.Cost:
		does = "pass, beyond the quota"
	}
	return does
}
