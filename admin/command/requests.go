package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/admin/explain"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

var explainCommand = commandSpec{
	use:   "explain [--key KEY | --key-id ID | --user USER] --method GET --path /x --ip ADDRESS",
	short: "Shows what the policy does with a request, and why",
	long: `Shows the user and the tier, the bans, and why each rule applies or not. For each limit it shows
the amount, the source of the amount, and the remaining quota. The command evaluates the rules with
the code of the proxies, and charges nothing. It does not show zones in the configurations of
proxies, which are not part of the policy.`,
	example: `explain --user acme --method GET --path /api/v1/x --ip 192.0.2.1
explain --key - --path /api/v1/x < key.txt
explain --user acme --path / --at 2026-11-27`,
	flags: []flag{
		{name: "key", kind: secret, usage: `API key, or "-" to read it from standard input`},
		{name: "key-id", kind: keyDigest, usage: "API key by its number"},
		{name: "user", usage: "user that the proxy has authenticated"},
		{name: "tier", value: "anonymous", usage: "tier of requests without a user"},
		{name: "unknown-key", value: "reject", kind: oneOf("reject", "anonymous"),
			usage: "what proxies do with unknown keys: reject or anonymous"},
		{name: "without-key", value: "refuse", kind: oneOf("refuse", "anonymous"),
			usage: "what proxies with an api_key do without a key and a user: refuse or anonymous"},
		{name: "method", usage: "method (default GET, or POST with --model)"},
		{name: "path", value: "/", usage: "path, as the client sends it"},
		{name: "host", usage: "host"},
		{
			name:  "ip",
			kind:  address,
			usage: "address of the client (default " + explain.AssumedAddress.String() + ")",
		},
		{name: "route", usage: "name of the route, as the configuration of the proxy sets it"},
		repeated("header", `header of the request, as in "X-Tenant: blue"`),
		{name: "model", usage: "model that the body names"},
		{name: "at", value: "now", kind: moment, usage: "time of the request"},
	},
	exclusive: []string{"key key-id user"},
	jsonOnly:  "outcome reason status rule host mode retry_after",
	runGo:     explainRequest,
}

func explainRequest(c *invocation) error {
	path, _, _ := strings.Cut(c.flag("path"), "?")
	if !strings.HasPrefix(path, "/") {
		return invalid("--path", path, "a path that begins with a slash")
	}
	method := cmp.Or(c.flag("method"), http.MethodGet)
	if c.flag("method") == "" && c.flag("model") != "" {
		method = http.MethodPost
	}
	facts := policy.Facts{
		DefaultTier: c.flag("tier"), RejectUnknown: c.flag("unknown-key") != "anonymous",
		Method: strings.ToUpper(method), Host: c.flag("host"), Path: path, Route: c.flag("route"),
		HTTP: &http.Request{Header: http.Header{}},
	}
	sender := policy.Credential{Digest: c.value("key_id"), User: c.flag("user")}
	if key := c.value("key"); key != "" {
		sender.Digest = policy.Digest(key)
	}
	request := &explain.Request{Sender: sender, Model: c.flag("model"), At: c.moment("at"), Facts: facts}
	// Without the flag --ip, ParseAddr fails, and the result is the zero Addr, which means none.
	request.Address, _ = netip.ParseAddr(c.value("ip"))
	for _, header := range c.flagList("header") {
		name, value, ok := strings.Cut(header, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return invalid("--header", strings.TrimSpace(name), `a name and a value, as in "X-Tenant: blue"`)
		}
		request.HTTP.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	request.Preflight = policy.IsPreflight(request.Method, request.HTTP.Header)
	request.NeedsKey = c.flag("without-key") != "anonymous" && !request.Preflight
	db, err := pgxdb.Open(c.expandedDSN, pgxdb.Options{MaxConns: 1})
	if err != nil {
		return err
	}
	defer db.Close()
	e, err := explain.Explain(c.ctx, c.conn, db, request)
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
		*explain.Explanation
		Bans any `json:"bans"`
	}{e, bans})
}

var replayCommand = commandSpec{
	use:   "replay --rule RULE [SETTING=VALUE ...]",
	short: "Simulates other limits of a rule on recorded requests",
	long: `Decides the requests in the audit log again, at the time of each, with the code of the proxies.
SETTING is one of the settings of "rules set" for limits. Overrides are today's. The audit log must
contain the requests that passed: use "audit all" or "audit sample".

The result differs from real limits in these cases:
- The counters begin empty. Until the longest window has passed, the replay refuses too little.
- A row may stand for several requests, of a sample or of equal refusals. They count as one burst.
- With a sample, the result is useful only for a limit with ten or more sampled requests: at 5 %, a
  limit of 200 or more.
- Requests that another limit refused, or that were blocked or rejected, do not count.
- Without full addresses in the log, a rule by address counts several clients as one.`,
	example: `replay --rule free per_hour=500 algorithm=token_bucket burst=20 --since 24h
replay --rule protect limit.burst=50/10s --since 2026-11-20 --until 2026-11-27`,
	flags: append(
		[]flag{{name: "rule", usage: "the rule", required: true}, linesFlag("10")},
		periodFlags("7d", "requests")...),
	noun:  "rule",
	runGo: replay,
}

// replaySettings lists the settings of a rule that a replay can change: its limits, and the cost of a
// request.
var replaySettings = strings.Fields(
	"cost per_second per_minute per_hour per_day per_month algorithm burst durable " +
		"on_exceed limit.NAME",
)

func replay(c *invocation) error {
	rule := c.flag("rule")
	changes, err := assignments(c.args, replaySettings, isLimit)
	if err != nil {
		return fmt.Errorf("%w: a replay changes limits, not the requests to which they apply", err)
	}
	var limits *explain.Limits
	err = c.inTransaction(func() error {
		if len(changes) > 0 {
			// The database refuses a rule without limits, unless the rule is off. Turn the rule off, so that
			// ReadLimits reports missing limits with its own error. The transaction is rolled back.
			result, err := c.conn.Exec(c.ctx, "UPDATE rate_limit_rules SET mode = 'off' WHERE name = $1",
				rule)
			if err == nil && result.RowsAffected() > 0 {
				_, err = c.set("rate_limit_rule", rule, c.args, true)
			}
			if err != nil {
				return err
			}
		}
		if limits, err = explain.ReadLimits(c.ctx, c.conn, rule); err != nil {
			return err
		}
		return errRollback
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return c.missingError(rule)
	}
	if err != nil {
		return err
	}
	limits.CostIsSet = slices.ContainsFunc(changes, func(a assignment) bool { return a.name == "cost" })
	maxCounters, _ := strconv.Atoi(c.value("number")) // parse has checked the number
	report, err := explain.Run(c.ctx, c.conn, limits, c.moment("since"), c.moment("until"), maxCounters)
	if err != nil {
		return err
	}
	return c.show(report)
}
