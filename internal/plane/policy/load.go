package policy

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// Every column that the statements of this package return is a text. A value with many fields is
// one JSON text with the names of the fields, which the standard library decodes: an interpreter
// would take long to decode it field by field. NULL is the zero value. What the database writes in
// another way than Go is put into Go's form by these functions.

// timeSQL is a time.Time. What is out of its range, such as infinity, is none. endSQL is an end; what
// ended before 1970, such as -infinity, ended then.
func timeSQL(expression string) string {
	return "CASE WHEN " + expression + " BETWEEN '0001-01-02 00:00+00' AND '9999-12-31 00:00+00' THEN to_char(" + expression + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END`
}

func endSQL(expression string) string {
	return "CASE WHEN " + expression + " < '1970-01-01 00:00+00' THEN '1970-01-01T00:00:00Z' ELSE " + timeSQL(expression) + " END"
}

// durationSQL is a time.Duration. Constraints bound it.
func durationSQL(expression string) string {
	return "(extract(epoch FROM " + expression + ") * 1000000000)::bigint"
}

// loadSQL are the fields of a row in memory, as the arguments of json_build_object: those of the columns of a table, with
// an alias. An object in the object, such as Limit, is NULL if all of its columns are.
func loadSQL(t *columns.Table, alias string) string {
	var fields, inner []string
	var names, within string // the columns of inner, and the name of its object
	end := func() {
		if within != "" {
			fields = append(fields, "'"+within+"', CASE WHEN num_nonnulls("+names+") > 0 THEN json_build_object("+strings.Join(inner, ", ")+") END")
		}
		inner = nil
		names = ""
		within = ""
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Load == "" {
			continue
		}
		column := alias + "." + c.Name
		if c.Kind == columns.Range {
			fields = append(fields, "'From', "+timeSQL("lower("+column+")"), "'Until', "+endSQL("upper("+column+")"))
			continue
		}
		if c.Kind == columns.Amount {
			fields = append(fields, "'Unlimited', "+column+" IS NULL")
		}
		dot := strings.IndexByte(c.Load, '.')
		if dot < 0 {
			fields = append(fields, "'"+c.Load+"', "+valueSQL(c, column))
			continue
		}
		if c.Load[:dot] != within {
			end()
			within = c.Load[:dot]
		} else {
			names += ", "
		}
		names += column
		inner = append(inner, "'"+c.Load[dot+1:]+"', "+valueSQL(c, column))
	}
	end()
	return strings.Join(fields, ", ")
}

// valueSQL is the value of a column in memory. A choice is its number. One that only a later version knows is 255, which
// Compile refuses.
func valueSQL(c *columns.Column, column string) string {
	switch {
	case c.LoadIs != "":
		return column + " = '" + c.LoadIs + "'"
	case c.Choices != nil:
		return "CASE WHEN " + column + " IS NOT NULL THEN coalesce(array_position('{" + strings.Join(c.Choices, ",") + "}', " + column + ") + " + strconv.Itoa(c.First-1) + ", 255) END"
	case c.Kind == columns.Duration:
		return durationSQL(column)
	}
	return column
}

// wholeSQL is a row of each statement that reads the policy: whether what the statement reads is whole, see readWhole.
const wholeSQL = `
UNION ALL
SELECT 'whole', ` + schema.PolicyWhole + `::text, ''`

// rulesSQL returns the rules that can have an effect, each with its limits, and the overrides
// for tiers.
var rulesSQL = `SELECT * FROM (SELECT 'rule' AS part, r.name, json_build_object(` + loadSQL(&columns.Tables[columns.Rules], "r") + `, 'Limits', ` + LimitsSQL + `)::text
FROM rate_limit_rules r WHERE r.mode <> 'off' AND (upper_inf(r.valid) OR upper(r.valid) > now()) AND (lower_inf(r.valid) OR lower(r.valid) < '9999-12-31 00:00+00')
UNION ALL
SELECT 'override', o.rule, ` + OverrideSQL + `::text FROM rate_limit_overrides o WHERE o.tier IS NOT NULL AND ` + overrideDueSQL + wholeSQL + `) AS a ORDER BY 1, 2, 3`

// LimitsSQL is the JSON text of a []RuleLimit: the limits of a row r of rate_limit_rules.
var LimitsSQL = `(SELECT json_agg(json_build_object(` + loadSQL(&columns.Tables[columns.Limits], "l") + `) ORDER BY l.name) FROM rate_limit_rule_limits l WHERE l.rule = r.name)`

// OverrideSQL is the JSON of an Override: of a row o of rate_limit_overrides. overrideDueSQL says whether it can have an effect.
var OverrideSQL = `json_build_object(` + loadSQL(&columns.Tables[columns.Overrides], "o") + `)`

const overrideDueSQL = `(upper_inf(o.valid) OR upper(o.valid) > now()) AND (lower_inf(o.valid) OR lower(o.valid) < '9999-12-31 00:00+00')`

// banSQL is a Ban of a row b of rate_limit_bans, without the digest.
var banSQL = `json_build_object('Network', b.network, 'User', b.user_id, 'KeyID', b.key_id, 'Until', ` + endSQL("b.until") + `, 'Reason', b.reason)::text`

// newestBansSQL are the bans that hold.
const newestBansSQL = `(SELECT * FROM rate_limit_bans WHERE until > now() ORDER BY banned_at DESC, id DESC LIMIT 100000)`

// bansSQL returns the bans of networks and users that hold: each with what it is of, its name, and a Ban. One row is the number
// of all bans.
var bansSQL = `SELECT * FROM (SELECT CASE WHEN b.network IS NULL THEN 'user' ELSE 'network' END, coalesce(b.network::text, b.user_id), ` + banSQL + `
	FROM ` + newestBansSQL + ` b WHERE b.key_id IS NULL
UNION ALL
SELECT 'count', count(*)::text, '' FROM rate_limit_bans WHERE until > now()` + wholeSQL + `) AS a(part, name, ban) ORDER BY 1, 2`

// bannedKeysSQL returns the API keys that are banned, and up to 100,000 of banned users, as bansSQL does. It is a statement of
// its own: while the table of API keys is locked, all else must still be obeyed.
var bannedKeysSQL = `SELECT * FROM (SELECT 'key', encode(k.digest, 'hex'), ` + keyBanSQL + ` FROM rate_limit_api_keys k JOIN ` + newestBansSQL + ` b ON b.key_id = k.id
UNION ALL
(SELECT 'key', encode(k.digest, 'hex'), ` + keyBanSQL + ` FROM rate_limit_api_keys k JOIN ` + newestBansSQL + ` b ON b.user_id = k.user_id
	ORDER BY k.id DESC LIMIT 100000)` + wholeSQL + `) AS a(part, digest, ban) ORDER BY 2, 3`

// keyBanSQL is a Ban of a row k of rate_limit_api_keys.
var keyBanSQL = `json_build_object('KeyID', k.id, 'User', k.user_id, 'Until', ` + endSQL("b.until") + `, 'Reason', b.reason)::text`

// identitiesSQL returns the API keys with the digests $1, and the users $2, each with its
// overrides. It is planned each time, since the tables grow by orders of magnitude.
var identitiesSQL = `SELECT 'key', a.digest, json_build_object('KeyID', k.id, 'CountedAs', k.counted_as, 'ExpiresAt', ` + endSQL("k.expires_at") + `, 'RevokedAt', ` + endSQL("k.revoked_at") + `, ` + keyTierSQL + `, ` + userSQL + `,
	'Overrides', (SELECT json_agg(` + OverrideSQL + `) FROM rate_limit_overrides o WHERE (o.key_id = k.id OR o.user_id = k.user_id) AND ` + overrideDueSQL + `))::text
FROM rate_limit_users u JOIN rate_limit_api_keys k ON k.user_id = u.user_id JOIN unnest($1::text[]) AS a(digest) ON k.digest = decode(a.digest, 'hex')
UNION ALL
SELECT 'user', a.user_id, json_build_object('Tier', u.tier, 'TierUntil', ` + endSQL("u.tier_until") + `, ` + userSQL + `,
	'Overrides', (SELECT json_agg(` + OverrideSQL + `) FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND ` + overrideDueSQL + `))::text
FROM unnest($2::text[]) AS a(user_id) LEFT JOIN rate_limit_users u ON u.user_id = a.user_id` + wholeSQL

var userSQL = `'User', u.user_id, 'Known', u.user_id IS NOT NULL,
	'PeriodStart', u.period_start::text || 'T00:00:00Z', 'TimeZone', CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END`

// keyTierSQL is the tier of an API key k, else that of its user. That of the key lasts as long as
// the key.
var keyTierSQL = `'Tier', coalesce(k.tier, u.tier), 'TierUntil', CASE WHEN k.tier IS NULL THEN ` + endSQL("u.tier_until") + ` END`
