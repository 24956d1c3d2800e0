package command

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	key, user, tier, method, path, host, ip, route, at, unknownKey string
	keyID                                                          int64
	headers                                                        []string
}

func explainCommand(t *tool) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain [--key KEY | --key-id ID | --user USER] --method GET --path /x --ip ADDRESS",
		Short: "Shows what the policy does with a request, and why",
		Long: `Shows what the policy does with a request, and why: the user and the tier, the bans, each rule
and why it applies or not, and of each limit the amount, where the amount comes from and what
is left. The rules are matched by the code of the proxies. Nothing is charged. Zones in the
configurations of proxies are not part of the policy.`,
		Example: `  caddy pg-ratelimit explain --user acme --method GET --path /api/v1/x --ip 192.0.2.1
  caddy pg-ratelimit explain --key-id 7 --path /api/v1/x

  # a key, without leaving it in the history of the shell
  caddy pg-ratelimit explain --key - --path /api/v1/x < key.txt

  # what will be on Black Friday
  caddy pg-ratelimit explain --user acme --path / --at 2026-11-27`,
		RunE: t.on(func(c *call) error {
			r, err := f.request(c)
			if err != nil {
				return err
			}
			e, err := c.db.Explain(c.ctx, r)
			return show(c, e, err, addExplanation)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.key, "key", "", `API key, or "-" to read it from standard input`)
	flags.Int64Var(&f.keyID, "key-id", 0, "API key by its number")
	flags.StringVar(&f.user, "user", "", "user that the proxy authenticated")
	flags.StringVar(&f.tier, "tier", "anonymous", "tier of requests without a user")
	flags.StringVar(&f.unknownKey, "unknown-key", "reject", "what proxies do with unknown keys: reject or anonymous")
	flags.StringVar(&f.method, "method", "GET", "method")
	flags.StringVar(&f.path, "path", "/", "path, as it is sent")
	flags.StringVar(&f.host, "host", "", "host")
	flags.StringVar(&f.ip, "ip", "", "address of the client (default "+admin.AssumedAddress.String()+", which the output then says)")
	flags.StringVar(&f.route, "route", "", "name of the route, as the configuration of the proxy sets it")
	flags.StringArrayVar(&f.headers, "header", nil, `header of the request, as in "X-Tenant: blue"`)
	flags.StringVar(&f.at, "at", "", "when the request comes (default now)")
	cmd.MarkFlagsMutuallyExclusive("key", "key-id", "user")
	t.mayComplete(cmd, "user", t.completeOne(userNames))
	t.mayComplete(cmd, "tier", t.completeOne(tierNames))
	t.mayComplete(cmd, "key-id", t.completeOne(validKeys))
	return cmd
}

// request is the request that the flags describe.
func (f *explainFlags) request(c *call) (*admin.Request, error) {
	r := &admin.Request{KeyID: f.keyID, User: f.user, Tier: f.tier, Method: strings.ToUpper(f.method), Host: f.host, Route: f.route, Header: http.Header{}}
	var err error
	if r.Key, err = c.secret("--key", f.key); err != nil {
		return nil, err
	}
	if c.cmd.Flags().Changed("key-id") && f.keyID < 1 {
		return nil, &ratelimit.FieldError{Field: "--key-id", Value: cell(f.keyID), Want: "the number of a key, as in keys list"}
	}
	switch f.unknownKey {
	case "reject":
	case "anonymous":
		r.AllowUnknown = true
	default:
		return nil, &ratelimit.FieldError{Field: "--unknown-key", Value: f.unknownKey, Want: "reject or anonymous"}
	}
	if !strings.HasPrefix(f.path, "/") {
		return nil, &ratelimit.FieldError{Field: "--path", Value: f.path, Want: "a path that begins with a slash"}
	}
	r.Path, _, _ = strings.Cut(f.path, "?")
	if f.ip != "" {
		if r.Address, err = admin.ParseAddress("--ip", f.ip); err != nil {
			return nil, err
		}
	}
	for _, header := range f.headers {
		name, value, found := strings.Cut(header, ":")
		if !found || strings.TrimSpace(name) == "" {
			return nil, &ratelimit.FieldError{Field: "--header", Value: strings.TrimSpace(name), Want: `a name and a value, as in "X-Tenant: blue"`}
		}
		r.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if f.at != "" {
		if r.At, err = admin.ParseTime("--at", f.at); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func addExplanation(p *page, e *admin.Explanation) {
	var facts table
	facts.add("result", result(e))
	facts.add("at", e.At)
	if e.Key != nil {
		key := cell(e.Key.Hint)
		if e.Key.ID != 0 {
			key = "key " + cell(e.Key.ID)
		}
		facts.add("key", key, e.Key.State)
	}
	facts.add("user", or(e.User, "nobody"))
	if e.Key != nil && e.Key.Tier != nil && *e.Key.Tier == e.Tier {
		facts.add("tier", e.Tier, "of the key")
	} else {
		facts.add("tier", e.Tier)
	}
	address := e.Address
	if e.AddressAssumed {
		address += " (assumed, because --ip is not given)"
	}
	facts.add("address", address)
	facts.add("path", e.Path)
	p.table(facts)
	addSection(p, "Bans", e.Bans, banRow)
	p.print("\nRules\n")
	addList(p, e.Rules, func(r *admin.ExplainedRule) row {
		return row{"RULE", r.Name, "ACTION", r.Action, "FAMILY", r.Family, "PRIORITY", r.Priority, "APPLIES", r.Applies, "WHY", r.Why}
	}, "There are no rules.")
	addSection(p, "Limits", e.Limits, explainedRow)
}

func explainedRow(l *admin.ExplainedLimit) row {
	cost := cell(l.Cost)
	if l.Settle != "" {
		cost += ", then " + text(l.Settle)
	}
	return row{
		"LIMIT", l.Rule + "/" + l.Limit, "COUNTED FOR", hideKeys(l.Key), "AMOUNT", or(l.Quota, "unlimited"), "FROM", "the " + l.AmountFrom,
		"WINDOW", window(l.Seconds, l.Calendar), "ALGORITHM", l.Algorithm, "COST", cost, "LEFT", l.Left, "RESETS", l.Reset, "WOULD", would(l),
	}
}

// window is the window of a limit: so many seconds, or a unit of the calendar.
func window(seconds *float64, calendar *string) string {
	if seconds != nil {
		return span(*seconds)
	}
	return cell(calendar)
}

// result is the result of an explanation in words.
func result(e *admin.Explanation) string {
	switch e.Result {
	case "refused":
		by := text(e.Reason)
		if e.Rule != "" && !strings.HasPrefix(e.Reason, "limit ") {
			by += " by the rule " + text(e.Rule)
		}
		return fmt.Sprintf("refused with status %d: %s", e.Status, by)
	case "exempt":
		return "passes: the rule " + text(e.Rule) + " exempts it from all limits"
	case "limited":
		return "passes, and is charged to limits"
	}
	return "passes: no limit applies"
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
