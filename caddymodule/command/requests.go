package command

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/evaluate"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

var explainCommand = commandSpec{
	use:   "explain [--key KEY | --key-id ID | --user USER] --method GET --path /x --ip ADDRESS",
	short: "Shows what the policy does with a request, and why",
	long: `Shows the user and the tier, the bans, each rule and why it applies or not, and of each limit the
amount, where the amount comes from and what is left. The rules are matched by the code of the
proxies. Nothing is charged. Zones in the configurations of proxies are not part of the policy.`,
	example: `  caddy pg-ratelimit explain --user acme --method GET --path /api/v1/x --ip 192.0.2.1
  caddy pg-ratelimit explain --key - --path /api/v1/x < key.txt
  caddy pg-ratelimit explain --user acme --path / --at 2026-11-27`,
	flags: []flag{
		{name: "key", kind: secret, usage: `API key, or "-" to read it from standard input`},
		keyIDFlag("API key by its number"),
		{name: "user", usage: "user that the proxy authenticated"},
		{name: "tier", value: "anonymous", usage: "tier of requests without a user"},
		{name: "unknown-key", value: "reject", kind: oneOf("reject", "anonymous"),
			usage: "what proxies do with unknown keys: reject or anonymous"},
		{name: "method", value: "GET", usage: "method"},
		{name: "path", value: "/", usage: "path, as it is sent"},
		{name: "host", usage: "host"},
		{
			name:  "ip",
			kind:  address,
			usage: "address of the client (default " + evaluate.AssumedAddress.String() + ")",
		},
		{name: "route", usage: "name of the route, as the configuration of the proxy sets it"},
		{name: "header", value: []string(nil), usage: `header of the request, as in "X-Tenant: blue"`},
		{name: "at", value: "now", kind: moment, usage: "when the request comes"},
	},
	exclusive: []string{"key key-id user"},
	jsonOnly:  "outcome reason status rule host mode retry_after",
	do:        explain,
}

func explain(c *invocation) error {
	path, _, _ := strings.Cut(c.flag("path"), "?")
	if !strings.HasPrefix(path, "/") {
		return invalid("--path", path, "a path that begins with a slash")
	}
	r := &evaluate.Request{Key: c.value("key"), User: c.flag("user"), At: c.moment("at"), Facts: policy.Facts{
		Tier: c.flag("tier"), RejectUnknown: c.flag("unknown-key") != "anonymous",
		Method: strings.ToUpper(c.flag("method")), Host: c.flag("host"), Path: path, Route: c.flag("route"),
		Header: http.Header{},
	}}
	// Without the flag, the results are 0 and the zero Addr, which mean none.
	r.KeyID, _ = strconv.ParseInt(c.value("key_id"), 10, 64)
	r.Address, _ = netip.ParseAddr(c.value("ip"))
	for _, header := range c.flagList("header") {
		name, value, found := strings.Cut(header, ":")
		if !found || strings.TrimSpace(name) == "" {
			return invalid("--header", strings.TrimSpace(name), `a name and a value, as in "X-Tenant: blue"`)
		}
		r.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	db, err := c.openDriver()
	if err != nil {
		return err
	}
	defer db.Close()
	e, err := evaluate.Explain(c.ctx, c.conn, db, r)
	if err != nil {
		return err
	}
	c.values["address"], c.values["sender"], c.values["id"] = e.Address, e.User, e.KeyID
	bans, err := c.rows(
		bansSQL + " WHERE network >>= @address::inet OR user_id = @sender OR key_id = @id::bigint " +
			"ORDER BY id",
	)
	if err != nil {
		return err
	}
	return c.show(struct {
		*evaluate.Explanation
		Bans any `json:"bans"`
	}{e, bans}, "")
}

var replayCommand = commandSpec{
	use:   "replay --rule RULE [SETTING=VALUE ...] [--since 7d]",
	short: "Shows what other limits of a rule would have done to the recorded requests",
	long: `Decides the requests in the audit log again, at the time of each, by the code of the proxies.
Settings are those of "rules set" that are about limits. The overrides hold as they are now, and
the tier is that of the recorded request.

The audit log must have the requests that passed: "audit all" or "audit sample". A row of a
sample, or of refusals within the same second, counts as all its requests at once. The counters
begin empty, so for the time of the longest window the replay refuses less than the limits would
have. A sample is too small for a limit of less than 10 of its rows. Requests that another limit
refused, or that were blocked or rejected, do not count. Where the audit log has no full
addresses, a rule that counts by address counts several clients as one.`,
	example: `  caddy pg-ratelimit replay --rule free per_hour=500 algorithm=token_bucket burst=20 --since 24h
  caddy pg-ratelimit replay --rule protect limit.burst=50/10s --since 2026-11-20 --until 2026-11-27`,
	flags: append(
		[]flag{{name: "rule", usage: "the rule", required: true}, limitFlag("10")},
		periodFlags("7d", "requests")...),
	noun: "rule",
	do:   replay,
}

// replaySettings are the settings of a rule that a replay can change: its limits, and the cost of a request.
var replaySettings = strings.Fields(
	"cost per_second per_minute per_hour per_day per_month algorithm burst durable " +
		"on_exceed limit.NAME",
)

func replay(c *invocation) error {
	rule := c.flag("rule")
	settings, err := assignments(c.args, replaySettings, isLimit)
	if err != nil {
		return fmt.Errorf("%w: a replay changes limits, and not to which requests they apply", err)
	}
	var limits *evaluate.Limits
	err = c.inTransaction(func() error {
		if len(settings) > 0 {
			// A rule that is off may have no limits, so the error for that comes from ReadLimits.
			found, err := c.conn.Exec(c.ctx, "UPDATE rate_limit_rules SET mode = 'off' WHERE name = $1", rule)
			if err == nil && found.RowsAffected() > 0 {
				_, err = c.set("rate_limit_rule", rule, c.args, true)
			}
			if err != nil {
				return err
			}
		}
		if limits, err = evaluate.ReadLimits(c.ctx, c.conn, rule); err != nil {
			return err
		}
		return errRollback
	})
	if err != nil {
		return err
	}
	if limits == nil {
		return c.missing(rule)
	}
	limits.CostIsSet = slices.ContainsFunc(settings, func(a assignment) bool { return a.name == "cost" })
	most, _ := strconv.Atoi(c.value("number")) // parse has checked it
	r, err := evaluate.Run(c.ctx, c.conn, limits, c.moment("since"), c.moment("until"), most)
	if err != nil {
		return err
	}
	return c.show(r, "")
}
