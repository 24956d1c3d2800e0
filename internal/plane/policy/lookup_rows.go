package policy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// identitiesSQL returns the API keys with the digests $1, and the users $2, each with its
// overrides and bans. It is planned each time, since the tables grow by orders of magnitude.
// The last row has the numbers of the tables. The server finds them after it has locked the
// tables, so they are those that were read.
var identitiesSQL = `SELECT 'key', a.digest, json_build_object('key', k.id, 'expires', ` + endSQL("k.expires_at") + `, 'revoked', ` + endSQL("k.revoked_at") + `, ` + userSQL + `,
	'overrides', (SELECT json_agg(` + overrideSQL + `) FROM rate_limit_overrides o WHERE (o.key_id = k.id OR o.user_id = k.user_id) AND ` + overrideDueSQL + `),
	'bans', (SELECT json_agg(` + banSQL + `) FROM rate_limit_bans b WHERE (b.key_id = k.id OR b.user_id = k.user_id) AND b.until > now()))::text
FROM unnest($1::text[]) AS a(digest) JOIN rate_limit_api_keys k ON k.digest = decode(a.digest, 'hex') JOIN rate_limit_users u ON u.user_id = k.user_id
UNION ALL
SELECT 'user', a.user_id, json_build_object(` + userSQL + `,
	'overrides', (SELECT json_agg(` + overrideSQL + `) FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND ` + overrideDueSQL + `),
	'bans', (SELECT json_agg(` + banSQL + `) FROM rate_limit_bans b WHERE b.user_id = a.user_id AND b.until > now()))::text
FROM unnest($2::text[]) AS a(user_id) LEFT JOIN rate_limit_users u ON u.user_id = a.user_id
UNION ALL
SELECT 'tables', ` + numbersSQL + `, ''`

var userSQL = `'user', u.user_id, 'tier', u.tier, 'tier_until', ` + endSQL("u.tier_until") + `, 'period', u.period_start::text, 'zone', CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END`

var banSQL = `json_build_object('user', b.user_id, 'key', b.key_id, 'until', ` + endSQL("b.until") + `, 'reason', b.reason)`

// identityJSON is an identity of identitiesSQL. NULL is the zero value. User is NULL if the
// database does not have the user.
type identityJSON struct {
	Key       int64          `json:"key"`
	Expires   *int64         `json:"expires"`
	Revoked   *int64         `json:"revoked"`
	User      *string        `json:"user"`
	Tier      string         `json:"tier"`
	TierUntil *int64         `json:"tier_until"`
	Period    string         `json:"period"`
	Zone      string         `json:"zone"`
	Overrides []overrideJSON `json:"overrides"`
	Bans      []banJSON      `json:"bans"`
}

type banJSON struct {
	User   string `json:"user"`
	Key    int64  `json:"key"`
	Until  *int64 `json:"until"`
	Reason string `json:"reason"`
}

// decodeIdentity fills in an identity.
func decodeIdentity(text string, id *Identity) error {
	var row identityJSON
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return err
	}
	id.KeyID = row.Key
	id.Known = row.User != nil
	if row.User != nil {
		id.User = *row.User
	}
	id.Tier = row.Tier
	id.TierUntil = timeOf(row.TierUntil)
	if row.Period != "" {
		day, err := time.Parse("2006-01-02", row.Period)
		if err != nil {
			return err
		}
		id.PeriodStart = day
	}
	id.TimeZone = row.Zone
	id.ExpiresAt = timeOf(row.Expires)
	id.RevokedAt = timeOf(row.Revoked)
	for i := range row.Overrides {
		id.Overrides = append(id.Overrides, row.Overrides[i].override())
	}
	for i := range row.Bans {
		b := &row.Bans[i]
		id.Bans = append(id.Bans, Ban{User: b.User, KeyID: b.Key, Until: timeOf(b.Until), Reason: b.Reason})
	}
	return nil
}

// answer is what the database says of a sender.
type answer struct {
	identity *Identity
	err      error // of this sender alone
}

// lookUp looks senders up in one statement, and returns in which tables. Senders that the database does not have are not in
// the result. lookUp does not ask for a user with a name that no row can have: such a name would
// make the statement fail for all.
func lookUp(db postgres.DB, calls []*lookup) (map[string]answer, string, error) {
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
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: identitiesSQL, Args: []any{digests, users}, Unnamed: true}, 3)
	if err != nil {
		return nil, "", fmt.Errorf("looking up API keys and users: %w", err)
	}
	found := make(map[string]answer, len(rows)/3)
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "tables" {
			tables = rows[i+1]
			continue
		}
		s := sender{}
		if rows[i] == "user" {
			s.user = rows[i+1]
		} else {
			s.digest = digestOf(rows[i+1])
		}
		id := &Identity{}
		if err := decodeIdentity(rows[i+2], id); err != nil {
			found[s.name()] = answer{err: fmt.Errorf("looking up an API key or a user: %w", err)}
			continue
		}
		id.Digest = s.digest
		if s.user != "" {
			id.User = s.user
		}
		found[s.name()] = answer{identity: id}
	}
	return found, tables, nil
}
