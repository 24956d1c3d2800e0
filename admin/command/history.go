package command

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// auditScope explains to users which requests the audit log contains.
const auditScope = `The setting "audit" of each proxy selects which requests the audit log contains. With
"history", its default is "denied": only refusals.`

// outcomes accepts a list of values of the audit log's column outcome.
var outcomes = kind{
	"CASE WHEN string_to_array(t, ',') <@ '{" + strings.Join(outcome.Words, ",") + "}' THEN t END",
	"one or more of " + strings.Join(outcome.Words, ", ") + ", with commas between them"}

// auditSQL selects rows of the audit log, without rows of transactions before @horizon. The column xmin has
// the low 32 bits of the id of a row's transaction. Because no index sorts all rows by time, the statement
// reads the last minute, then the minute before, then the 2 minutes before these, then 4 minutes, and so on,
// until it has @number rows.
const auditSQL = `SELECT a.time, a.outcome, nullif(a.shadow, false) AS shadow, a.reason, a.model,
	a.prefix, a.limit_name, a.key, a.user_id, a.key_id,
	rate_limit_key_name(a.key_id) AS key_name, a.tier, a.address, a.method, a.host, a.path, a.status,
	a.cost, a.count, a.weight, a.quota, a.remaining, a.unit,
	a.retry_after, a.duration, a.node, a.region, a.also, a.id
FROM (SELECT coalesce(@prefix::text, 'rule/' || @rule::text) AS prefix) p,
(SELECT greatest(@since::timestamptz,
		CASE WHEN i < 20 THEN @until::timestamptz - 2 ^ i * interval '1 minute' END) AS low,
	@until::timestamptz - floor(2 ^ (i - 1)) * interval '1 minute' AS high
FROM generate_series(0, 20) AS i ORDER BY i) AS step, LATERAL (SELECT * FROM rate_limit_audited a
WHERE a.time >= step.low AND a.time < step.high
	AND (p.prefix IS NULL OR p.prefix IN (a.prefix, a.prefix || '/' || a.limit_name)
		OR p.prefix = 'rule/' AND starts_with(a.prefix, p.prefix))
	AND (@user::text IS NULL OR a.user_id = @user) AND (@key_id::bigint IS NULL OR a.key_id = @key_id::bigint)
	AND (@outcome::text IS NULL OR a.outcome = ANY (string_to_array(@outcome, ',')))
	AND (a.shadow = @shadow::boolean OR @outcome::text IS NULL AND NOT @shadow::boolean)
	AND (@address::inet IS NULL OR a.address && @address::inet)
	AND (@host::text IS NULL OR a.host = @host) AND (@node::text IS NULL OR a.node = @node)
	AND (@horizon::bigint IS NULL
		OR ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint - a.xmin::text::bigint) & 4294967295)
			<= pg_snapshot_xmax(pg_current_snapshot())::text::bigint - @horizon::bigint)
ORDER BY a.time DESC LIMIT @number::bigint) a LIMIT @number::bigint`

var auditCommand = commandSpec{
	use:   "audit",
	short: "Lists what happened to requests, the newest first",
	long: `COUNT is the number of equal refusals within one second, and WEIGHT the number of requests that a
sampled row represents. LIMIT NAME is the limit that refused the request, or has the least left.
SHADOW marks what the mode shadow would have refused; with --outcome, such rows need --shadow.
--follow prints the newest row last, and with --json one object per line.

` + auditScope,
	example: `audit --follow --rule free
audit --user acme --outcome limited --since 24h
audit --prefix web --since 2026-11-27 --until 2026-11-28 --json`,
	flags: append([]flag{
		{name: "user", usage: "only requests of this user"},
		keyIDFlag("only requests with the API key of this number"),
		{name: "prefix", usage: "only requests with this prefix, rule/RULE or rule/RULE/LIMIT"},
		{name: "rule", usage: "only requests that this rule decided"},
		{name: "outcome", kind: outcomes, usage: outcomes.want},
		toggle("shadow", "only what the mode shadow would have refused"),
		{name: "address", kind: network, usage: "only requests from this address or network"},
		{name: "host", usage: "only requests to this host"},
		{name: "node", usage: "only requests to this proxy"},
		toggle("follow,f", "keep printing new rows, until Ctrl-C"),
		linesFlag("50"),
	}, periodFlags("1h", "decided")...),
	exclusive: []string{"follow until", "prefix rule"},
	jsonOnly:  "tier cost duration region also id",
	runGo: func(c *invocation) error {
		if c.boolFlag("follow") {
			return c.follow()
		}
		c.emptyText = c.emptyAuditText()
		return c.list(auditSQL)
	},
}

// emptyAuditText returns the text to print if no row of the audit log matches the flags.
func (c *invocation) emptyAuditText() string {
	behind := ""
	if time.Since(c.moment("until")) < 10*time.Second {
		behind = "The audit log is up to 2 s behind: if the request was just now, ask again.\n"
	}
	return behind + "No such request is in the audit log from " + displayTime(c.moment("since")) + " until " +
		displayTime(c.moment("until")) + ".\n" + auditScope
}

var whyCommand = commandSpec{
	use:   "why WHO",
	short: "Explains why requests were refused",
	long: `WHO is a user, an address, the key of a counter, or # and the number of an API key. The command
looks back up to 24 hours from --at, finds the latest minute in which a request of WHO was refused
or had no decision, and sums up such requests of that minute.`,
	example: "why 192.0.2.7 --at 14:05",
	flags: []flag{{name: "at", value: "now", usage: "a time, or a time of day in UTC such as 14:05, which " +
		"means the latest 14:05"}},
	jsonOnly: "time outcome reason prefix limit_name key user_id key_id address method host path status " +
		"requests quota remaining retry_after node model unit",
	sql: "SELECT * FROM rate_limit_why(@WHO, @at)",
}

// requireUser fails if nobody knows the user.
const requireUser = "SELECT rate_limit_require_user(@USER)"

var noticesCommand = commandSpec{
	use:   "notices [-n 100]",
	short: "Lists the counters that have reached a percentage of their quota, newest first",
	long: `STATE is waiting, taken (delivered, or by a job of yours), failed (for a day) or void (no longer
true, since used has become smaller).`,
	flags:     []flag{linesFlag("100")},
	emptyText: "There are no notices.",
	sql: `SELECT rule, limit_name, key, period, percent, used, quota, currency, at, taken_at,
	CASE WHEN void_at < 'infinity' THEN 'void' WHEN taken_at IS NOT NULL THEN 'taken'
		WHEN try_at = 'infinity' THEN 'failed' ELSE 'waiting' END AS state, error
FROM rate_limit_notices
ORDER BY at DESC, rule, limit_name, key, percent DESC LIMIT @number::bigint`,
	commands: []commandSpec{deliverCommand},
}

var usageCommand = commandSpec{
	use:   "usage USER",
	short: "Shows what a user and all below it did, in total, by day, by API key and by limit",
	long: `Without --since: the user's billing period that is running, or its month that begins in --month.
Days are in UTC. The first and the last have the hours that begin in the period, as long as hours are
kept; with --since, days count as a whole. KEY ID 0 stands for requests without a key. SETTLED is the cost
of the requests that passed: the actual one, if the limit settles.
Proxies with a history count every request, also those that are not in the audit log.`,
	example: "usage acme --month 2026-11",
	flags: append(
		[]flag{{name: "month", kind: month, usage: "a month such as 2026-11"}},
		periodFlags("", "the days")...),
	exclusive: []string{"month since", "month until"},
	beforeSQL: requireUser,
	sql:       usageSQL,
	runGo: func(c *invocation) error {
		if c.json {
			return c.list(c.sql)
		}
		const sums = "requests, refused, last_request FROM u WHERE "
		rows, err := c.change("WITH u AS MATERIALIZED (" + usageSQL + ") SELECT " +
			"requests, refused, last_request" +
			listColumn("by_day", "SELECT day, "+sums+"day IS NOT NULL ORDER BY day") +
			listColumn(`"by_API_key"`, "SELECT key_id, "+sums+"key_id IS NOT NULL ORDER BY key_id") +
			listColumn("by_limit", "SELECT prefix, limit_name, unit, requests, refused, settled, "+
				"last_request FROM u WHERE prefix IS NOT NULL ORDER BY prefix, limit_name, unit") +
			" FROM u WHERE num_nonnulls(day, key_id, prefix) = 0")
		if err != nil {
			return err
		}
		return c.show(rows[0])
	},
}

// usageSQL selects the billing period that contains a time, which for --month is the end of that month.
const usageSQL = `SELECT u.* FROM rate_limit_billing(ARRAY[rate_limit_counted_user(@USER)]) AS b
CROSS JOIN LATERAL (SELECT coalesce((@month::date + interval '1 month' - interval '12 h') AT TIME ZONE b.zone,
	now()) AS at) AS t
CROSS JOIN LATERAL rate_limit_calendar_periods(CASE WHEN @month::date IS NULL THEN b.unit ELSE 'month' END,
	b.zone, b.day, t.at, t.at) AS p
CROSS JOIN LATERAL rate_limit_usage(@USER,
	coalesce(date_trunc('day', @since::timestamptz, 'UTC'), p.starts), CASE WHEN @since::timestamptz IS NULL
	THEN p.ends ELSE date_trunc('day', @until::timestamptz - interval '1 us', 'UTC') + interval '24 h' END) u`

var nodesCommand = commandSpec{
	use:   "nodes",
	short: "Lists the proxies, and whether each has applied all changes of the policy",
	long: `CANNOT has the statement that a proxy needs before it can decide. A proxy without a heartbeat for
10 seconds is silent. Silent and ended proxies stay in the list for a day.`,
	emptyText: "No proxy counts here.",
	sql: `SELECT node, region, version, CASE WHEN live AND cannot IS NOT NULL THEN 'cannot decide'
	WHEN live THEN 'live' WHEN ended IS NOT NULL THEN 'ended' ELSE 'silent' END AS state, live, ended, cannot,
	epoch, policy, behind, seen, local_from, local_until, problems, ` + strings.Join(outcome.Words, ", ") + `,
	locally
FROM rate_limit_proxies ORDER BY node`,
	jsonOnly: "live epoch",
	runGo: func(c *invocation) error {
		err := c.list(c.sql)
		if err != nil || c.json {
			return err
		}
		rules, err := c.rows("SELECT * FROM rate_limit_rule_warnings ORDER BY rule, field")
		if err != nil {
			return err
		}
		return c.show(map[string]any{"Rules that cannot be used, or may not do what they seem to:": rules})
	},
}

var stateCommand = commandSpec{
	use:   "state",
	short: "Reports whether limits are enforced, and what needs attention",
	sql:   "SELECT * FROM rate_limit_state",
	runGo: func(c *invocation) error {
		state, err := migrate.Read(c.ctx, c.conn)
		problem := schema.Outdated(strconv.Itoa(state.Revision))
		if err == nil {
			err = state.Err()
		}
		if errors.Is(err, schema.ErrRestoring) {
			problem, err = err.Error(), nil
		}
		if err != nil && !errors.Is(err, schema.ErrMissing) {
			return err
		}
		if problem == "" {
			return c.list(c.sql)
		}
		c.values["problem"] = problem
		return c.list(c.sql + " UNION ALL SELECT 'problem', NULL, @problem::text")
	},
}

var topCommand = commandSpec{
	use:   "top",
	short: "Lists the counters that are closest to their limits, or with --since the busiest senders",
	long: `--prefix is the beginning of a rule's prefix, such as rule/free, or the prefix of a limit in a
proxy's configuration. --since lists the counters and users with the most requests in the audit
log since then, with their refusals. --by path lists paths in place of counters.` + "\n\n" + auditScope + `
If a proxy audits only refusals, REQUESTS counts only them.`,
	example: `top --prefix rule/free/ -n 5
top --since 1h`,
	flags: append([]flag{
		{name: "prefix", usage: "counters of this prefix only"},
		{name: "by", value: "sender", kind: oneOf("sender", "path"), usage: "with --since: sender or path"},
		linesFlag("20"),
	}, periodFlags("", "requests")...),
	emptyText: "Nothing is used.",
	runGo: func(c *invocation) error {
		prefix := c.flag("prefix")
		switch {
		case c.values["since"] != nil:
			c.emptyText = c.emptyAuditText()
			return c.list(`SELECT t.prefix, t.name,
	rate_limit_key_name(NULL, substring(t.prefix FROM '^rule/(.*)$'), t.name) AS key_name, t.user_id,
	t.requests, t.refused, t.failed, t.last, t.percent_read
FROM rate_limit_top(@since, @until, @by, coalesce(@prefix, '')) AS t
ORDER BY requests DESC, refused DESC, last DESC, prefix, name, user_id LIMIT @number::bigint`)
		case c.flag("by") == "path":
			return invalid("--by", "path", "given with --since: counters "+
				"have no paths. The metrics have them with route {path} in the configuration")
		case prefix != "" && !strings.HasPrefix(prefix, option.RulePrefix):
			c.emptyText = "There are no counters."
			return c.list("SELECT @prefix AS prefix, " + counterColumns + `
FROM ` + counterRows + `(@prefix, t.durable) AS c
WHERE c.expires_at > now()
ORDER BY coalesce(c.count, cardinality(c.hits), c.slots) DESC NULLS LAST, c.tokens, c.last_refill DESC, c.key
LIMIT @number::bigint`)
		}
		return c.list(`SELECT u.rule, u.limit_name, u.key,
	rate_limit_key_name(NULL, u.rule, u.key) AS key_name, u.algorithm, u.used, u.held, u.quota, u.percent,
	u.resets_at, u.unit FROM rate_limit_used u WHERE used + held > 0 AND quota IS NOT NULL
	AND starts_with('rule/' || rule || '/' || limit_name, coalesce(@prefix, ''))
ORDER BY percent DESC, used DESC, rule, limit_name, key LIMIT @number::bigint`)
	},
}

// counterNoun names a counter in messages. The first argument of its commands is the prefix.
const counterNoun = "counter of"

// counterColumns selects a counter's columns, which the durable and the unlogged table share.
const counterColumns = `c.key, t.durable, c.count, c.prev_count, c.window_start,
	c.tokens, c.last_refill, cardinality(c.hits) AS hits, c.slots, c.held, c.expires_at`

// counterRows begins a call of rate_limit_counters that reads both tables.
const counterRows = "(VALUES (true), (false)) AS t(durable) CROSS JOIN LATERAL rate_limit_counters"

var getCommand = commandSpec{
	use: "get PREFIX KEY", noun: counterNoun,
	short: "Shows a counter",
	long:  `The prefix of a rule's limit is rule/RULE/LIMIT. KEY may be "-", to read it from standard input.`,
	example: `get rule/free/per_hour acme
get per-key - < key.txt`,
	failIfEmpty: true,
	sql:         counterSQL,
}

// counterSQL selects the counter of @PREFIX and @KEY, with what a rule's limit has used.
var counterSQL = "SELECT @PREFIX AS prefix, " + strings.Replace(counterColumns, "c.held",
	"coalesce(u.held, c.held) AS held", 1) + `,
	u.algorithm, u.used, u.quota, u.percent, u.resets_at, u.unit
FROM ` + counterRows + `(rate_limit_counted_prefix(@PREFIX), t.durable, rate_limit_stored_keys(@KEY)) AS c
LEFT JOIN rate_limit_used u ON starts_with(@PREFIX, 'rule/') AND u.rule = split_part(@PREFIX, '/', 2)
	AND u.limit_name = split_part(@PREFIX, '/', 3) AND u.key = c.key
	AND u.key = ANY (rate_limit_stored_keys(@KEY))`

var resetCommand = commandSpec{
	use: "reset PREFIX KEY", noun: counterNoun,
	short: "Deletes the counter that get shows, so that its key has the full quota again",
	long: `A proxy that refused the key within the last second may refuse the key for up to a second more.
What is held by running requests is charged when they end. The users above a user keep their counters.`,
	flags:       []flag{toggle("dry-run", "show the counter, and delete nothing")},
	failIfEmpty: true,
	sql: "WITH counter AS MATERIALIZED (" + counterSQL + `), reset AS MATERIALIZED (SELECT
	CASE WHEN @dry_run::boolean THEN (SELECT count(*) FROM counter)
		ELSE rate_limit_reset(@PREFIX, @KEY) END AS n)
SELECT CASE WHEN @dry_run::boolean THEN 'would be deleted' ELSE 'deleted' END AS state, @PREFIX AS prefix,
	c.key, coalesce(c.used, c.count, c.hits, c.slots) AS used, c.held, c.quota, c.unit
FROM reset r LEFT JOIN counter c ON true WHERE r.n > 0
UNION ALL SELECT 'still counts', concat_ws('/', 'rule', u.rule, u.limit_name), u.key, u.used, u.held, u.quota,
	u.unit
FROM reset r, rate_limit_used_by(@KEY) u
WHERE r.n > 0 AND u.level IS NOT NULL AND starts_with(@PREFIX, 'rule/')`,
}

var forgetCommand = commandSpec{
	use:   "forget [--user USER | --ip ADDRESS | --key KEY | --key-id ID]",
	short: "Deletes all stored data about a person",
	long: `Deletes counters, rows of the audit log, usage, overrides and bans in one transaction, and prints
how many rows of each table are DELETED, and KEPT: changes of the policy, which proxies delete
after 30 days, and counters of requests in flight. If a proxy runs, the command deletes once more
after 10 seconds. What longer requests bring back, at least as many as the last row says, a proxy
deletes each hour for a day: a digest of the name stays as long.

Archive files stay, and so do rows of the audit log with only a network, and counters of combined
keys, which have digests. Only the owner of the tables of the history can change these.`,
	example: "forget --user acme --account --dry-run",
	flags: []flag{
		{name: "user", usage: "a user, with all its API keys"},
		{name: "ip", kind: address, usage: "the address of a client; IPv6: the whole /64 of the address"},
		{
			name:  "key",
			kind:  secret,
			usage: `an API key, or the key of a counter; "-" reads it from standard input`,
		},
		keyIDFlag("an API key by its number"),
		toggle("account", "delete the user and the API keys as well"),
		toggle("dry-run", "count the rows, and delete none"),
	},
	exclusive: []string{"user ip key key-id"},
	emptyText: "There are no tables.",
	sql: `SELECT f.name AS "table", f.deleted, nullif(f.kept, 0) AS kept
FROM rate_limit_forget_person(@user, @key_id::bigint, @key, @ip::inet, @account::boolean,
	@dry_run::boolean) AS f`,
	runGo: func(c *invocation) error {
		if c.flag("user")+c.flag("ip")+c.flag("key")+c.flag("key-id") == "" {
			return invalid("--user, --ip, --key or --key-id", "", "given: one of them selects the person")
		}
		err := c.list(c.sql)
		if err != nil || c.boolFlag("dry-run") {
			return err
		}
		proxies, err := c.scalar("rate_limit_live_proxies()")
		if err != nil || *proxies == "0" {
			return err
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(forgetPause):
		}
		_, err = c.change(c.sql)
		return err
	},
}

// forgetPause is the time in which proxies write what they have about a person. Tests shorten it.
var forgetPause = 10 * time.Second
