package policy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// identitiesSQL returns the API keys with the digests $1, and the users $2, each with its
// overrides and bans. It is planned each time, since the tables grow by orders of magnitude.
// The last row has the numbers of the tables. The server finds them after it has locked the
// tables, so they are those that were read.
var identitiesSQL = `SELECT 'key', a.digest, json_build_object('KeyID', k.id, 'ExpiresAt', ` + endSQL("k.expires_at") + `, 'RevokedAt', ` + endSQL("k.revoked_at") + `, ` + keyTierSQL + `, ` + userSQL + `,
	'Overrides', (SELECT json_agg(` + OverrideSQL + `) FROM rate_limit_overrides o WHERE (o.key_id = k.id OR o.user_id = k.user_id) AND ` + overrideDueSQL + `),
	'Bans', ` + keyBansSQL + `)::text
FROM unnest($1::text[]) AS a(digest) JOIN rate_limit_api_keys k ON k.digest = decode(a.digest, 'hex') JOIN rate_limit_users u ON u.user_id = k.user_id
UNION ALL
SELECT 'user', a.user_id, json_build_object('Tier', u.tier, 'TierUntil', ` + endSQL("u.tier_until") + `, ` + userSQL + `,
	'Overrides', (SELECT json_agg(` + OverrideSQL + `) FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND ` + overrideDueSQL + `),
	'Bans', (SELECT json_agg(` + banSQL + `) FROM rate_limit_bans b WHERE b.user_id = a.user_id AND b.until > now()))::text
FROM unnest($2::text[]) AS a(user_id) LEFT JOIN rate_limit_users u ON u.user_id = a.user_id
UNION ALL
SELECT 'tables', ` + numbersSQL + `, ''`

var userSQL = `'User', u.user_id, 'Known', u.user_id IS NOT NULL,
	'PeriodStart', u.period_start::text || 'T00:00:00Z', 'TimeZone', CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END`

// keyTierSQL is the tier of an API key k, else that of its user. That of the key lasts as long as
// the key.
var keyTierSQL = `'Tier', coalesce(k.tier, u.tier), 'TierUntil', CASE WHEN k.tier IS NULL THEN ` + endSQL("u.tier_until") + ` END`

// keyBansSQL are the bans of an API key k and of its user.
var keyBansSQL = `(SELECT json_agg(` + banSQL + ` ORDER BY b.id) FROM rate_limit_bans b WHERE (b.key_id = k.id OR b.user_id = k.user_id) AND b.until > now())`

// decodeIdentity is a row of identitiesSQL: the sender and its identity.
func decodeIdentity(kind, name, text string) (credential, *Identity, error) {
	s := credential{}
	if kind == "key" {
		s.digest = digestOf(name)
	} else {
		s.user = name
	}
	id := &Identity{Digest: s.digest, User: s.user}
	err := json.Unmarshal([]byte(text), id)
	return s, id, err
}

// answer is what the database says of a sender.
type answer struct {
	identity *Identity
	err      error // only of this sender
}

// lookUp looks senders up in one statement, and returns in which tables. Senders that the
// database does not have are not in the result. lookUp does not ask for a user with a name that no
// row can have: such a name would make the statement fail for all.
func lookUp(db pgdb.DB, calls []*lookup) (map[string]answer, string, error) {
	tables := ""
	digests := []string{}
	users := []string{}
	for _, call := range calls {
		user := call.sender.user
		if user == "" {
			digests = append(digests, hex.EncodeToString(call.sender.digest[:]))
		} else if len(user) <= ratelimit.MaxKey && utf8.ValidString(user) && strings.IndexByte(user, 0) < 0 {
			users = append(users, user)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
	defer cancel()
	rows, err := runOne(ctx, db, &pgdb.Statement{SQL: identitiesSQL, Args: []any{digests, users}, Unnamed: true}, 3)
	if err != nil {
		return nil, "", fmt.Errorf("looking up API keys and users: %w", err)
	}
	found := make(map[string]answer, len(rows)/3)
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "tables" {
			tables = rows[i+1]
			continue
		}
		s, id, err := decodeIdentity(rows[i], rows[i+1], rows[i+2])
		if err != nil {
			found[s.name()] = answer{err: fmt.Errorf("looking up an API key or a user: %w", err)}
			continue
		}
		found[s.name()] = answer{identity: id}
	}
	return found, tables, nil
}
