package settings

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// LimitTable has the settings of a limit. The first setting is the prefix, which is an argument of the zone
// in a Caddyfile.
var LimitTable = []Setting{
	// The name of the limit. Limits with one prefix on one database share their counters, in all
	// proxies, and must have [one algorithm and window](caddy.md#several-limits). Default: required if
	// there is a `limit`.
	{Name: "prefix", Want: "one name", Read: func(dst *Settings, text string) error {
		dst.Limit.Limit.Prefix = text
		return nil
	}},
	// Requests with the same [key](caddy.md#keys) share the quota. It can have alternatives. Default:
	// `{client_ip}`.
	{Name: "key", Form: Words, Want: "one text, with or without placeholders", Read: readKey},
	// [Requests without a key](caddy.md#requests-without-a-key): `share` one quota, `skip` the limit,
	// or `refuse` with 401. Default: `share`.
	oneOf("without_key", func(dst *Settings, text string) { dst.Limit.WithoutKey = option.Without(text) },
		"share", "skip", "refuse"),
	// `sliding_window`, `fixed_window`, `token_bucket`, `sliding_log`, `gcra` or `in_flight`:
	// [algorithms](algorithms.md). Default: `sliding_window`.
	{Name: "algorithm", Want: "the name of one algorithm", Read: readAlgorithm},
	// `100 1m` or `100/1m`: 100 events a minute. A `fixed_window` may follow the
	// [calendar](algorithms.md#calendar-windows): `10000 1mo calendar Europe/Berlin`. For
	// [in_flight](algorithms.md#in_flight): `5`. Default: required, here or in a zone.
	{Name: "limit", Form: Words, Read: readRate},
	// What the limit counts: `requests`, or [tokens](caddy.md#tokens-of-language-models) of language
	// models: `tokens`, `input_tokens` or `output_tokens`. Only rules have
	// [`money`](llm.md#budgets-in-money). Default: `requests`.
	oneOf("unit", func(dst *Settings, text string) { dst.Limit.Unit = option.Unit(text) },
		string(option.Requests), string(option.Tokens), string(option.InputTokens),
		string(option.OutputTokens)),
	// With a unit of tokens: the output that a request holds until its response has ended, if it [names
	// no maximum](llm.md#before-the-response). Default: 4096.
	number("output", ratelimit.MaxEvents, "", func(dst *Settings, n int64) { dst.Limit.Output = n }),
	// With a unit: `refuse` answers requests for [batches](llm.md#what-is-free-and-what-is-not) with
	// 400, `pass` lets them pass for nothing. Default: `refuse`.
	oneOf("batches", func(dst *Settings, text string) { dst.Limit.Batches = text }, "refuse",
		option.PassBatches),
	// For `token_bucket`, the capacity. If `burst` is below the events of `limit`, tokens are added one
	// by one, not once a window. For `gcra`, how many events may pass at once. Default: the events of
	// `limit`.
	number("burst", ratelimit.MaxEvents, "", func(dst *Settings, n int64) { dst.Limit.Limit.Burst = n }),
	// What a request takes of the quota of requests: a whole number of 1 or more, or a
	// [placeholder](caddy.md#cost). Default: 1.
	{Name: "cost", Want: "a whole number from 1 to 9007199254740992, or a placeholder that gives one",
		Read: readCost, Unset: "1"},
	// The real cost of a request, from its [response](caddy.md#cost-after-the-response). Default: what
	// it was charged.
	{Name: "settle", Form: Words, Want: option.WantCostSource, Read: readSettle},
	// Count in the logged table, which survives a crash of the database server. Default: off; on with a
	// unit of tokens.
	onOff("durable", "off", func(dst *Settings) *bool { return &dst.Limit.Limit.Durable }),
	// With `durable`: wait until the decision is on the disk of the database server. Default: off; on
	// with a unit of tokens.
	onOff("synchronous_commit", "off",
		func(dst *Settings) *bool { return &dst.Limit.Limit.SynchronousCommit }),
	// Charge [in advance](algorithms.md#leases) this share of the remaining quota: 0.1% to 50%.
	// Default: none.
	{Name: "lease", Want: "a share of what is left from 0.1% to 50%, such as 5%",
		Read: readLease, Unset: "off"},
	// Store [keys](caddy.md#keys) as SHA-256 digests. Proxies that share counters must agree. Default:
	// on if the key contains a credential.
	{Name: "hash_key", Form: Switch, Read: readHashKey},
	// The prefix length of IPv4 addresses in the key: 1 to 32. Default: 32.
	number("ipv4_prefix", 32, "32", func(dst *Settings, n int64) { dst.Limit.IPv4 = int(n) }),
	// The same for IPv6: 1 to 128. One client often has a whole /64. Default: 64.
	number("ipv6_prefix", 128, "64", func(dst *Settings, n int64) { dst.Limit.IPv6 = int(n) }),
	// Which requests are in the [audit log](caddy.md#audit). Default: `denied` with a `history`, else
	// `off`.
	{Name: "audit", Form: Words, Want: option.WantAudit, Read: checkAudit},
	// `shadow` counts, reports what it would have refused, and refuses nothing; `off` does not count.
	// Default: `enforce`.
	oneOf("mode", func(dst *Settings, text string) { dst.Limit.Mode = option.Mode(text) },
		"enforce", "shadow", "off"),

	// Traefik: `match`: [Which requests](traefik.md#several-limits) the limit counts. A zone in Caddy
	// has [matchers](caddy.md#several-limits). Default: all.
}

// ZoneTable has the settings of a zone that its handler has otherwise.
var ZoneTable = []Setting{
	// `off` keeps the limit out of the [fields](caddy.md#what-the-client-sees) of responses, so that
	// they do not say what is left. Default: as the handler.
	oneOf("fields", func(dst *Settings, text string) { dst.Limit.Hidden = text == "off" }, "", "off"),
}

// HandlerTable has the settings of a handler or a middleware that do not belong to one limit. An adapter has
// further settings of its own, such as zones.
var HandlerTable = []Setting{
	// Where to count: a Postgres URL or key=value pairs, or `memory` for this process alone (for
	// trials). Default: the global option `dsn`, else `DATABASE_URL` in the environment.
	dsn("dsn", WantDSN),
	// How long the database may take for a statement: 1ms to 1m. While it answers, a request waits for
	// [up to four timeouts](operating.md#when-there-is-no-decision). Default: 250ms.
	{Name: "timeout", Want: "a duration from 1ms to 1m", IsDuration: true, Read: readTimeout, Unset: "250ms"},
	// A request without a decision: `allow` lets it pass, `deny` refuses with 503, and with `local` the
	// proxy [decides by itself](operating.md#the-proxy-limits-by-itself). Default: `allow`.
	oneOf("on_error", func(dst *Settings, text string) { dst.OnError = OnError(text) },
		"allow", "deny", "local"),
	// Which [fields](caddy.md#what-the-client-sees) describe the limits: `X-RateLimit-*` (`x`),
	// `RateLimit` and `RateLimit-Policy` (`ietf`), both (`x ietf`), or none (`off`). Default: `x`.
	oneOf("fields", func(dst *Settings, text string) {
		dst.Fields = Fields{X: strings.HasPrefix(text, "x"), IETF: strings.HasSuffix(text, "ietf")}
	}, "x", "ietf", "x ietf", "off"),
	// The error in the body of a refusal: a `text` or an `object` with [a message, a type and a
	// code](caddy.md#refusals-for-clients-of-language-models). Default: an object for clients of
	// language models, else a text.
	oneOf("errors", func(dst *Settings, text string) { dst.Errors = Errors(text) }, "", "text", "object"),
	// Refuse calls of gRPC, gRPC-Web and Connect as [these protocols do](caddy.md#refusals-for-grpc),
	// many of them with status 200. Set `off` where the proxy [only decides](programs.md) for another
	// one, which would take 200 for leave to pass. Default: on.
	onOff("grpc", "on", func(dst *Settings) *bool { return &dst.GRPC }),
	// Limits of the configuration do [not count](caddy.md#exemptions) requests from these networks and
	// addresses. Default: none.
	{Name: "exempt", Form: Words, Want: wantExempt, Read: readExempt},
	// How long the body of a POST may be, if a [limit of tokens](llm.md#before-the-response) applies:
	// bytes, or as in `512KB`. A longer one gets status 413. The proxy holds 32 times as much of all
	// these bodies at once, and twice as much of those of one client or key. Default: 8MB.
	{Name: "max_body", Want: wantSize, Read: readMaxBody, Unset: "8MB"},
	// The name of the route in the [metrics](operating.md#metrics-in-the-database): a name or a
	// placeholder. Default: that of the policy.
	{Name: "route", Want: wantRoute},
	// Apply the [rules in the database](policy.md). Default: none.
	{Name: "policy", Form: Block, Settings: PolicyTable},

	// Traefik: `dsnFile`: A file with the DSN, read again for each new connection.

	// `zone`, `zones`: A [further limit](caddy.md#several-limits) on the same request.

	// Traefik: `ipStrategy`: How `{client_ip}` is [found](traefik.md#the-clients-address). Default: the
	// address of the connection.
}

// PolicyTable has the settings of a policy. Other packages parse the settings without Read: the adapters
// parse dsn, and package serve parses the placeholders.
var PolicyTable = []Setting{
	// The database of the policy, if it is [another
	// one](servers.md#policy-and-history-on-other-servers). Default: that of the limits.
	dsn("dsn", WantPostgres),
	// The API key of a request: text with a placeholder, or alternatives such as
	// `{header.Authorization} | {header.X-Api-Key}`, of which the first that holds a key counts.
	// "Bearer " at its beginning is cut off. `Authorization` with another scheme, such as Basic, holds
	// no key. Default: requests have no key.
	{Name: "api_key", Form: Words, Want: "one text with a placeholder, or alternatives of such texts",
		Read: func(dst *Settings, text string) (err error) {
			dst.APIKey, err = parseAlternatives(text)
			return err
		}},
	// The user of a request without an API key: text with a placeholder that clients cannot set, such
	// as Caddy's `{http.auth.user.id}`. Default: nobody.
	{Name: "user", Want: "one text with a placeholder"},
	// The tier of requests that have no other one: a name or a placeholder. Default: `anonymous`.
	{Name: "tier", Want: "one name, or a placeholder that gives one"},
	// A request with an unknown, expired or revoked API key: `reject` refuses with 401, `anonymous`
	// ignores the key, so that `without_key` decides. Default: `reject`.
	oneOf("unknown_key", func(dst *Settings, text string) { dst.RejectUnknown = text == "reject" },
		"reject", "anonymous"),
	// With `api_key`, a request without a key and a user: `refuse` answers 401, unless it is a CORS
	// preflight, or [exempt](policy.md#the-model); `anonymous` lets the rules decide. Default:
	// `refuse`.
	oneOf("without_key", func(dst *Settings, text string) { dst.Anonymous = text == "anonymous" },
		"refuse", "anonymous"),
	// The name of the route, also for rules that count by route: a name or a placeholder. Default: that
	// of the handler.
	{Name: "route", Want: wantRoute},

	// Traefik: `dsnFile`: A file with this DSN.

	// Traefik: `forwardHeaders`: Tell the upstream [what the policy knows](traefik.md#the-policy).
	// Default: off.
}

const wantRoute = "one name, or a placeholder that gives one"

// PageTable has the settings of a page, which only the Caddy module serves.
var PageTable = []Setting{
	// The database. Default: the global option, else `DATABASE_URL`.
	dsn("dsn", WantDSN),
	// The database of the policy, if it is another one. Default: as in the first `pg_ratelimit` handler
	// of this Caddy with the same `dsn`.
	dsn("policy", WantPostgres),
	// The database of the history, if it is another one. Default: as in the first `pg_ratelimit`
	// handler of this Caddy with the same `dsn`.
	dsn("history", WantPostgres),
	// Names under which the page is reached, besides addresses, localhost and the names of its site.
	// Default: none.
	{Name: "hosts", Form: Words, Want: "one or more host names"},
	// Serve it although nothing in front of it keeps strangers out. Default: off.
	onOff("insecure", "off", func(dst *Settings) *bool { return &dst.Insecure }),
}

// ConnectionTable has the settings of a store.
var ConnectionTable = []Setting{
	// Where to count, as in [the handler](#the-handler). Default: `DATABASE_URL` in the environment.
	dsn("dsn", WantDSN),
	// Connections to each database: 1 to 1000. Default: the DSN's `pool_max_conns`, else 8.
	number("max_conns", 1000, "", func(dst *Settings, n int64) { dst.Connection.MaxConns = int(n) }),
	// `off`, or `PG_RATELIMIT_DISABLE_AUTO_MIGRATE=true` in the environment: you create the tables
	// yourself. Default: on.
	onOff("auto_migrate", "on", func(dst *Settings) *bool { return &dst.Connection.AutoMigrate }),
	// How likely a [cleanup](operating.md#cleanup-and-vacuum) follows a statement: 0 to 1. With 1, too,
	// a row stays for a minute after it has expired. Default: 0.1.
	{Name: "cleanup_probability", Want: "a number from 0 to 1", Read: readProbability, Unset: "0.1"},
	// Refuse without asking the database if a key is known to be used up. Default: on.
	onOff("remembered_refusals", "on",
		func(dst *Settings) *bool { return &dst.Connection.RememberedRefusals }),
	// The name of this proxy in the [registry](operating.md#the-registry-of-proxies). Give each of
	// several proxies on one host its own. Default: the host name and `/caddy` or `/traefik`.
	nodeName("node_name", func(dst *Settings) *string { return &dst.Connection.NodeName }),
	// Where this proxy runs, for the registry and the history, up to 100 bytes. Default: none.
	nodeName("region", func(dst *Settings) *string { return &dst.Connection.Region }),
	// [Record](operating.md#audit-log) what happens to requests. Default: off.
	{Name: "history", Form: Block, Settings: HistoryTable},

	// Traefik: `graceTimeOut`: How long a Traefik that [stops](llm.md#stopping-a-proxy) waits for
	// responses that it settles: 0s to 1h. Give it the value of `graceTimeOut` in the `lifeCycle` of
	// the entry point. Default: 10s.
}

// HistoryTable has the settings of a history.
var HistoryTable = []Setting{
	// The database of the history, if it is [another
	// one](servers.md#policy-and-history-on-other-servers). Default: that of the limits.
	dsn("dsn", WantPostgres),
	// How much of a client's address is in the audit log: `full`, `prefix` (the /24 of an IPv4 address,
	// the /48 of an IPv6 address) or `off`. It applies to addresses in keys too. Default: `full`.
	oneOf("audit_address",
		func(dst *Settings, text string) { dst.History.Address = option.AddressMode(text) },
		"full", "prefix", "off"),
	// How long the parts of the history are kept. What is left out stays as it is in the database.
	{Name: "retention", Form: Block, Settings: RetentionTable},

	// Traefik: `dsnFile`: A file with this DSN.
}

// RetentionTable has a setting for each part of the history.
var RetentionTable = []Setting{
	// The audit log. Default: 90 days.
	retention("audit", "audit"),
	// The metrics by day, added up for invoices. Default: 7 years.
	retention("usage", "metrics_day"),
}
