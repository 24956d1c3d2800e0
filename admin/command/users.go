package command

import "net/netip"

// ownedColumns selects the keys of @USER, and the overrides and bans of the user and these keys.
var ownedColumns = listColumn("keys", `SELECT k.*, r.* FROM rate_limit_key_states k
LEFT JOIN LATERAL rate_limit_recent(k.user_id, k.id) r ON true
WHERE k.user_id = @USER ORDER BY k.id`) + listColumn("overrides", `SELECT o.rule, o.limit_name, o.key_id,
	coalesce(to_jsonb(rate_limit_decimal(o.events, l.unit)), '"unlimited"') AS amount, o.burst,
	nullif(o.valid, '(,)') AS valid, o.reason
FROM rate_limit_overrides o JOIN rate_limit_rule_limits l ON (l.rule, l.name) = (o.rule, o.limit_name)
WHERE o.user_id = @USER OR o.key_id `+keysOfUser+`
ORDER BY o.rule, o.limit_name, o.key_id NULLS FIRST, lower(o.valid) NULLS FIRST`) +
	listColumn("bans", bansSQL+" WHERE user_id = @USER OR key_id "+keysOfUser+" ORDER BY id")

// listColumn returns a column, to append to a SELECT, that contains the rows of sql as a list.
func listColumn(name, sql string) string {
	return ", (SELECT coalesce(json_agg(p), '[]') FROM (" + sql + ") AS p) AS " + name
}

const (
	keysOfUser = "IN (SELECT id FROM rate_limit_api_keys WHERE user_id = @USER)"
	bansSQL    = "SELECT kind, banned, until, banned_by, banned_at, reason FROM rate_limit_banned"
	// banArguments completes a call of rate_limit_ban. If until is NULL, the ban is permanent.
	banArguments = ", until => coalesce(now() + @for::interval, @until::timestamptz), reason => @reason)"
)

var usersCommand = commandSpec{
	use: "users", noun: "user",
	short: "Shows, changes, bans and deletes users",
	commands: []commandSpec{{
		use:       "get USER",
		short:     "Shows a user: tier, keys, overrides, bans, usage, and used quotas",
		singleRow: true,
		sql: "SELECT *" + ownedColumns + listColumn("used", `SELECT *
FROM rate_limit_used_by(@USER) UNION ALL SELECT u.* FROM (SELECT DISTINCT ON (coalesce(counted_as, id)) id
	FROM rate_limit_api_keys WHERE user_id = @USER) k, rate_limit_used_by(@USER, k.id) u`) + `
FROM (SELECT @USER::text AS user_id) AS n LEFT JOIN rate_limit_user_states u USING (user_id)
LEFT JOIN LATERAL rate_limit_recent(n.user_id) AS r ON true
WHERE u.user_id IS NOT NULL OR EXISTS (SELECT FROM rate_limit_banned b WHERE b.user_id = n.user_id)`,
	}, {
		use:   "list",
		short: "Lists the users; with a history, also the requests of each today and this month",
		flags: []flag{
			{name: "tier", usage: "only users of this tier"},
			linesFlag("100"),
		},
		sql: `SELECT u.user_id, u.tier, u.parent, u.state, r.* FROM (SELECT u.* FROM rate_limit_user_states u
	WHERE @tier::text IS NULL OR u.tier = @tier ORDER BY u.user_id LIMIT @number::bigint) AS u
LEFT JOIN LATERAL rate_limit_recent(u.user_id) AS r ON true`,
	}, {
		use:   "set USER SETTING=VALUE ...",
		short: "Creates a user, or changes its settings",
		long: `A new user needs a tier. parent is the user above: its limits by user apply, too.
tier_until is a duration such as 90d, a time, or never. RULE/LIMIT
overrides the amount of a limit for this user with a number or unlimited, and RULE/LIMIT.burst
overrides the burst.`,
		example: `users set acme tier=pro tier_until=30d
users set acme free/per_hour=5000
users set ann tier=person parent=acme
users set acme free/per_hour=`,
		runGo: setter("rate_limit_user"),
	}, {
		use:       "delete USER",
		short:     "Deletes a user with its keys and overrides, and prints them",
		long:      "A ban of the user stays. To shut out a user and keep the keys, see users ban.",
		singleRow: true,
		// The lock prevents another session from creating a key of the user before the user is deleted.
		beforeSQL: "SELECT FROM rate_limit_users WHERE user_id = @USER FOR UPDATE",
		jsonOnly:  "user_id",
		sql: "SELECT user_id AS deleted, *" + ownedColumns + `
FROM rate_limit_user_states WHERE user_id = @USER AND rate_limit_delete_user(@USER)`,
	}, {
		use:     "ban USER",
		short:   "Bans a user with all its keys",
		example: "users ban acme --for 24h --reason 'ticket 4711'",
		flags:   banFlags, exclusive: []string{"for until"}, singleRow: true,
		beforeSQL: "SELECT rate_limit_ban(user_id => @USER" + banArguments,
		sql:       bansSQL + " WHERE user_id = @USER",
	}, {
		use:      "unban USER",
		short:    "Lifts the ban of a user",
		doneText: "unbanned",
		sql:      "SELECT WHERE rate_limit_unban(user_id => @USER)",
		listedBy: "bans",
	}},
}

var bansCommand = commandSpec{
	use:       "bans",
	short:     "Lists the banned networks, users and keys",
	emptyText: "There are no bans.",
	sql:       bansSQL + " ORDER BY network, user_id, key_id",
}

var banCommand = commandSpec{
	use:     "ban NETWORK",
	short:   "Bans a network or an address",
	example: "ban 192.0.2.0/24 --for 1h --reason scraping",
	flags: append(
		[]flag{toggle("yes", "ban a network of any size")},
		banFlags...),
	exclusive: []string{"for until"},
	singleRow: true,
	beforeSQL: "SELECT rate_limit_ban(network => @NETWORK::cidr" + banArguments,
	sql:       bansSQL + " WHERE network = @NETWORK::cidr",
	runGo: func(c *invocation) error {
		network := netip.MustParsePrefix(c.name())
		if isWide(network) && !c.boolFlag("yes") {
			return invalid("NETWORK", network.String(), "an IPv4 /8 or an IPv6 /16 at most, which is the "+
				"most that one organization holds, or given with --yes: a wider ban shuts "+
				"out unrelated clients")
		}
		return c.list(c.sql)
	},
}

// isWide reports whether a network is larger than any that one organization holds. The largest assignments
// are an IPv4 /8 and an IPv6 /16.
func isWide(network netip.Prefix) bool {
	mapped := netip.MustParsePrefix("::ffff:0:0/96")
	if network.Addr().Is4() {
		return network.Bits() < 8
	}
	return network.Bits() < 16 || network.Overlaps(mapped) && network.Bits() < mapped.Bits()+8
}

var unbanCommand = commandSpec{
	use: "unban NETWORK", noun: "network",
	short:    "Lifts the ban of a network or an address",
	doneText: "unbanned",
	sql:      "SELECT WHERE rate_limit_unban(network => @NETWORK::inet)",
	listedBy: "bans",
}
