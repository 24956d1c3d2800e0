package command

import (
	"net/netip"
)

var rulesCommand = entry{
	use: "rules", kind: "rule",
	short: "Lists and changes rules",
	commands: []entry{{
		use:   "list",
		short: "Lists all rules in the order in which proxies try them, with their limits and problems",
		empty: "There are no rules.",
		sql:   "SELECT * FROM rate_limit_rule_states",
	}, {
		use:   "set NAME SETTING=VALUE ...",
		short: "Makes a rule, or changes settings of one",
		long: `per_second, per_minute, per_hour, per_day, per_month and in_flight are how much may pass, or
unlimited. limit.NAME is a limit of any window, as in 100/10s, 10000/1mo calendar Europe/Berlin
or 5/in_flight. algorithm, burst, durable and on_exceed are for all limits of the rule. valid is
FROM..UNTIL, where either may be missing.`,
		example: `  caddy pg-ratelimit rules set free tiers=free algorithm=token_bucket per_hour=1000 burst=20
  caddy pg-ratelimit rules set protect paths='/api/v1/*' count_by=all per_second=100 mode=shadow
  caddy pg-ratelimit rules set friday limit.burst=50/10s valid=2026-11-27..2026-11-30
  caddy pg-ratelimit rules set protect paths=`,
		flags: []flag{
			{name: "force", value: false, usage: "allow an amount of 0, which refuses every request"},
		},
		do: setter("rate_limit_rule"),
	},
		ruleMode("enable", "enforce", "on: its limits apply"),
		ruleMode("disable", "off", "off: it is ignored"), {
			use:     "rename NAME NEW",
			short:   "Gives a rule another name, and with it new counters",
			becomes: "renamed to",
			sql:     "SELECT rate_limit_rename('rule', @NAME, @NEW)",
		}, {
			use:     "delete NAME",
			short:   "Deletes a rule with its limits and overrides",
			becomes: "deleted",
			sql:     "SELECT rate_limit_delete_rule(@NAME)",
		}},
}

// ruleMode is the command that gives a rule a mode.
func ruleMode(name, mode, help string) entry {
	return entry{
		use:     name + " NAME",
		short:   "Turns a rule " + help,
		becomes: name + "d",
		sql: "SELECT rate_limit_rule(name, mode => '" + mode + "') FROM rate_limit_rules " +
			"WHERE name = @NAME",
	}
}

var tiersCommand = entry{
	use: "tiers", kind: "tier",
	short: "Lists and changes tiers: the plans that users are on",
	commands: []entry{{
		use:   "list",
		short: "Lists the tiers, with how many users and keys are on each, and the rules for it",
		empty: "There are no tiers.",
		sql:   "SELECT * FROM rate_limit_tier_states ORDER BY rank, tier",
	}, {
		use:     "set TIER [SETTING=VALUE ...]",
		short:   "Makes a tier, or changes settings of one",
		example: "  caddy pg-ratelimit tiers set pro rank=2 comment='49 dollars a month'",
		do:      setter("rate_limit_tier"),
	}, {
		use:     "rename TIER NEW",
		short:   "Gives a tier another name, which its users, keys, overrides and rules then have",
		becomes: "renamed to",
		sql:     "SELECT rate_limit_rename('tier', @TIER, @NEW)",
	}, {
		use:     "delete TIER",
		short:   "Deletes a tier that nothing uses",
		becomes: "deleted",
		sql:     "SELECT rate_limit_delete_tier(@TIER)",
	}},
}

// ownedParts are the lists about a user, including those of its API keys.
var ownedParts = []part{
	{
		"keys",
		`SELECT k.*, r.* FROM rate_limit_key_states k
LEFT JOIN LATERAL rate_limit_recent(k.user_id, k.id) r ON true
WHERE k.user_id = @USER ORDER BY k.id`,
	},
	{
		"overrides",
		`SELECT o.rule, o.limit_name, o.key_id, coalesce(o.events::text, 'unlimited') AS amount, o.burst,
	nullif(o.valid, '(,)') AS valid, o.reason
FROM rate_limit_overrides o WHERE o.user_id = @USER OR o.key_id ` + keysOfUser + `
ORDER BY o.rule, o.limit_name, o.key_id NULLS FIRST, lower(o.valid) NULLS FIRST`,
	},
	{"bans", bansSQL + " WHERE user_id = @USER OR key_id " + keysOfUser + " ORDER BY id"},
}

const (
	keysOfUser = "IN (SELECT id FROM rate_limit_api_keys WHERE user_id = @USER)"
	userFields = "tier, tier_until, period_start, time_zone, comment, created_at, updated_at"
	bansSQL    = "SELECT kind, banned, until, banned_by, banned_at, reason FROM rate_limit_banned"
	// banArguments has the end of a ban; NULL is never.
	banArguments = ", until => coalesce(now() + @for::interval, @until::timestamptz), reason => @reason)"
)

var usersCommand = entry{
	use: "users", kind: "user",
	short: "Shows, changes, bans and deletes users",
	commands: []entry{{
		use:   "get USER",
		short: "Shows a user: tier, keys, overrides, bans, usage, and what is used of the limits",
		one:   true,
		sql: "SELECT n.user_id, " + userFields + `, r.*
FROM (SELECT @USER::text AS user_id) AS n LEFT JOIN rate_limit_users u USING (user_id)
LEFT JOIN LATERAL rate_limit_recent(n.user_id) AS r ON true
WHERE u.user_id IS NOT NULL OR EXISTS (SELECT FROM rate_limit_banned b WHERE b.user_id = n.user_id)`,
		parts: append(ownedParts[:3:3], part{"used", `SELECT * FROM rate_limit_used_by(@USER) UNION ALL
SELECT u.* FROM (SELECT DISTINCT ON (coalesce(counted_as, id)) id FROM rate_limit_api_keys
	WHERE user_id = @USER) k, rate_limit_used_by(@USER, k.id) u`}),
	}, {
		use:   "list [--tier TIER] [--sort last] [-n 100]",
		short: "Lists the users, and with a history what each did today and this month",
		flags: []flag{
			{name: "tier", usage: "users of this tier only"},
			{name: "sort", value: "name", usage: "name, or last for those without requests first",
				choices: []string{"name", "last"}},
			most(100),
		},
		choose: func(c *call) (string, string, error) {
			last := ""
			if c.text("sort") == "last" { // the history may be missing
				last = `(SELECT max(h.last_request) FROM rate_limit_metrics h
		WHERE h.granularity = 'day' AND h.user_id = u.user_id) NULLS FIRST, `
			}
			return `SELECT u.user_id, u.tier, u.state, r.* FROM (SELECT u.* FROM rate_limit_user_states u
	WHERE @tier::text IS NULL OR u.tier = @tier ORDER BY ` + last + `u.user_id LIMIT @number::bigint) AS u
LEFT JOIN LATERAL rate_limit_recent(u.user_id) AS r ON true`, "There are no users.", nil
		},
	}, {
		use:   "set USER SETTING=VALUE ...",
		short: "Makes a user, or changes settings of one",
		long: `A new user needs a tier. tier_until is a duration such as 90d, a time, or never. RULE/LIMIT is
another amount of a limit for this user, a number or unlimited, and RULE/LIMIT.burst another
burst.`,
		example: `  caddy pg-ratelimit users set acme tier=pro tier_until=30d
  caddy pg-ratelimit users set acme free/per_hour=5000
  caddy pg-ratelimit users set acme free/per_hour=`,
		do: setter("rate_limit_user"),
	}, {
		use:   "delete USER",
		short: "Deletes a user with its keys and overrides, and prints what the user had",
		long:  "A ban of the user stays. To shut a user out and keep the keys, see users ban.",
		one:   true,
		// No key can be made from here on.
		before: "SELECT FROM rate_limit_users WHERE user_id = @USER FOR UPDATE",
		sql:    "SELECT user_id AS deleted, " + userFields + " FROM rate_limit_users WHERE user_id = @USER",
		parts:  ownedParts,
		after:  "SELECT rate_limit_delete_user(@USER)",
	}, {
		use:     "ban USER",
		short:   "Shuts a user out, with all its keys",
		example: "  caddy pg-ratelimit users ban acme --for 24h --reason 'ticket 4711'",
		flags:   banFlags, alone: []string{"for until"}, one: true,
		before: "SELECT rate_limit_ban(user_id => @USER" + banArguments,
		sql:    bansSQL + " WHERE user_id = @USER",
	}, {
		use:     "unban USER",
		short:   "Lifts the ban of a user",
		becomes: "unbanned",
		sql:     "SELECT rate_limit_unban(user_id => @USER)",
		lacks:   "SELECT 'not banned'",
	}},
}

var bansCommand = entry{
	use:   "bans",
	short: "Lists the networks, users and keys that are shut out",
	empty: "There are no bans.",
	sql:   bansSQL + " ORDER BY network, user_id, key_id",
}

var banCommand = entry{
	use:     "ban NETWORK",
	short:   "Shuts a network or an address out",
	example: "  caddy pg-ratelimit ban 192.0.2.0/24 --for 1h --reason scraping",
	flags: append(
		[]flag{{name: "yes", value: false, usage: "ban the network however wide it is"}},
		banFlags...),
	alone: []string{"for until"},
	args:  []string{"network"}, one: true,
	before: "SELECT rate_limit_ban(network => @NETWORK::cidr" + banArguments,
	choose: func(c *call) (string, string, error) {
		network := netip.MustParsePrefix(get[string](c, "NETWORK"))
		if isWide(network) && !c.is("yes") {
			return "", "", must(
				"NETWORK",
				network.String(),
				"an IPv4 /8 or an IPv6 /16 at most, which is as much as one organisation holds, or given "+
					"with --yes: a wider ban shuts out all kinds of clients",
			)
		}
		return bansSQL + " WHERE network = @NETWORK::cidr", "", nil
	},
}

// isWide reports whether a network is larger than any that one organisation holds: the largest assignments
// are an IPv4 /8 and an IPv6 /16.
func isWide(network netip.Prefix) bool {
	mapped := netip.MustParsePrefix("::ffff:0:0/96")
	if network.Addr().Is4() {
		return network.Bits() < 8
	}
	return network.Bits() < 16 || network.Overlaps(mapped) && network.Bits() < mapped.Bits()+8
}

var unbanCommand = entry{
	use: "unban NETWORK", kind: "network",
	short:   "Lifts the ban of a network or an address",
	args:    []string{"network"},
	becomes: "unbanned",
	sql:     "SELECT rate_limit_unban(network => @NETWORK::inet)",
	lacks: `SELECT 'not banned' || coalesce('; banned are ' || string_agg(b.banned, ', '), '')
		FROM rate_limit_banned b WHERE rate_limit_network(b.network) && rate_limit_network(@NETWORK::inet)`,
}

var changesCommand = entry{
	use:   "changes [--since 1h] [-n 100]",
	short: "Lists the changes of the policy in the last 30 days, the latest first",
	long:  "--json has the rows before and after.",
	flags: []flag{
		{name: "since", value: "1h", kind: "duration", usage: "changes of the last 30m, 24h, 7d …"},
		most(100),
	},
	hide:  "ref key_id before after",
	empty: "Nothing was changed.",
	sql: `SELECT * FROM rate_limit_changed WHERE at >= now() - @since::interval
ORDER BY at DESC, seq DESC LIMIT @number::bigint`,
}
