package policy

import "github.com/pgratelimit/pg-ratelimit/internal/schema"

// Each statement of this package returns rows with one column: a JSON object as text. The standard library
// decodes the object, which is faster in the interpreter than decoding each field. The object of a rule or an
// override has all columns of its table. The statements convert values, such as intervals, that Postgres and
// Go format differently. NULL becomes the zero value. The expressions for rows are beside their types.

// timeSQL returns an expression for a time in microseconds since the Unix epoch. Times before the first
// second of the epoch, such as -infinity, become that second. Times after 9999-12-31 become 9999-12-31.
func timeSQL(expression string) string {
	return `CASE WHEN ` + expression + ` IS NOT NULL THEN
		(least(greatest(extract(epoch FROM ` + expression + `), 1), 253402214400) * 1000000)::bigint END`
}

// validSQL returns the fields From and Until of a row.
func validSQL(row string) string {
	return `'From', ` + timeSQL(`lower(`+row+`.valid)`) + `, 'Until', ` + timeSQL(`upper(`+row+`.valid)`)
}

// relevantSQL returns a condition that holds if a row can have an effect now or later.
func relevantSQL(row string) string {
	return `coalesce(upper(` + row + `.valid) > now(), true)
		AND coalesce(lower(` + row + `.valid) < '9999-12-31 00:00+00', true)`
}

// durationSQL returns an expression for a time.Duration.
func durationSQL(expression string) string {
	return `(extract(epoch FROM ` + expression + `) * 1000000000)::bigint`
}

// positionSQL returns an expression for the index of a value in a list. A value of a later version has the
// index 255.
func positionSQL(list, expression string) string {
	return `coalesce(array_position('{` + list + `}'::text[], ` + expression + `), 256) - 1`
}

// PriceSQL is an expression for a row p of rate_limit_prices, as the JSON of a Price.
var PriceSQL = `json_build_object('Model', p.model, ` + validSQL("p") + `,
	'Valid', nullif(p.valid, '(,)')::text, 'MaxOutput', p.max_output, 'Rates', rate_limit_rates(p))`

// wholeSQL adds a row to a statement that reads the policy. The row reports whether the statement saw the
// whole policy: see readWhole.
const wholeSQL = `
UNION ALL
SELECT json_build_object('Whole', ` + schema.Whole + `)`

// sorted returns a statement of selects and wholeSQL. It sorts the rows, so that equal rows give equal
// results.
func sorted(selects string) string {
	return `SELECT a::text FROM (` + selects + wholeSQL + `) AS a(a) ORDER BY 1`
}

// effectiveRulesSQL returns the rules that can have an effect, and the overrides for tiers.
var effectiveRulesSQL = rulesSQL("r.mode <> 'off' AND " + relevantSQL("r"))

// rulesSQL returns the rules r that meet a condition, and the overrides for tiers and the prices that can
// have an effect.
func rulesSQL(condition string) string {
	return sorted(`SELECT json_build_object('Rule', to_jsonb(r)
	|| jsonb_build_object('RetryAfter', ` + durationSQL("r.retry_after") + `,
	` + validSQL("r") + `, 'Limits', ` + LimitsSQL + `,
	'Newer', ` + schema.Newer + `))
	FROM rate_limit_rules r WHERE ` + condition + `
UNION ALL
SELECT json_build_object('Override', ` + OverrideSQL + `) FROM rate_limit_overrides o
	WHERE o.tier IS NOT NULL AND ` + relevantSQL("o") + `
UNION ALL
SELECT json_build_object('Price', ` + PriceSQL + `) FROM rate_limit_prices p WHERE ` + relevantSQL("p"))
}

// banSQL returns the field Ban for a row b of rate_limit_bans. user, key and digest are expressions for the
// banned user, and for the id and the digest of the banned API key.
func banSQL(user, key, digest string) string {
	return `'Ban', json_build_object('Network', b.network, 'User', ` + user + `, 'KeyID', ` + key + `,
		'Digest', ` + digest + `,
		'Until', ` + timeSQL("b.until") + `, 'Reason', b.reason)`
}

// newestBansSQL selects the newest bans in force, up to maxBans.
const newestBansSQL = `(SELECT * FROM rate_limit_bans WHERE until > now()
	ORDER BY banned_at DESC, id DESC LIMIT 100000) b`

// bansSQL returns the newest bans of networks and users, and the number of all bans in force.
var bansSQL = sorted(`SELECT json_build_object(` + banSQL("b.user_id", "b.key_id", "NULL") + `)
	FROM ` + newestBansSQL + ` WHERE b.key_id IS NULL
UNION ALL
SELECT json_build_object('InForce', count(*)) FROM rate_limit_bans
	WHERE until > now()`)

// bannedKeysSQL returns a ban for each API key, and for up to 100,000 API keys of users, that have one of the
// newest bans, also as the ban of a user above, and one for each user below a banned one. It is a separate
// statement, so that other changes take effect while the table of API keys is locked. It names users and keys
// before bans, so that tables are locked in one order.
var bannedKeysSQL = sorted(`(WITH RECURSIVE keys AS (
		SELECT k.* FROM rate_limit_users u JOIN rate_limit_api_keys k USING (user_id)), banned AS (
		SELECT u.user_id, b.id AS ban FROM rate_limit_users u JOIN ` + newestBansSQL + ` USING (user_id)
		UNION ALL SELECT u.user_id, a.ban FROM rate_limit_users u JOIN banned a ON u.parent = a.user_id)
	(SELECT json_build_object(` + bannedKeySQL + `)
	FROM banned a JOIN keys k USING (user_id) JOIN rate_limit_bans b ON b.id = a.ban
	ORDER BY k.id DESC LIMIT 100000)
	UNION ALL
	(SELECT json_build_object(` + banSQL("a.user_id", "NULL", "NULL") + `)
	FROM banned a JOIN rate_limit_bans b ON b.id = a.ban AND b.user_id <> a.user_id LIMIT 100000))
UNION ALL
SELECT json_build_object(` + bannedKeySQL + `)
	FROM rate_limit_api_keys k JOIN ` + newestBansSQL + ` ON b.key_id = k.id`)

var bannedKeySQL = banSQL("k.user_id", "k.id", "encode(k.digest, 'hex')")
