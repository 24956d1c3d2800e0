package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Key is an API key, without the key itself.
type Key struct {
	ID   int64   `json:"id"`
	Hint *string `json:"hint"`
	Name *string `json:"name"`
	User string  `json:"user"`
	// Tier is the key's own; nil is that of the user.
	Tier *string `json:"tier"`
	// State is valid, expired, revoked, or banned: the key, or its user.
	State string `json:"state"`
	// ExpiresAt is nil for never, and RevokedAt for a key that is not revoked. Both may lie
	// in the future.
	ExpiresAt  *time.Time `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	RevokedBy  *string    `json:"revoked_by"`
	ReplacedBy *int64     `json:"replaced_by"`
	CreatedAt  time.Time  `json:"created_at"`

	// Recent is nil if no usage was recorded, and where it was not asked for.
	Recent *Recent `json:"recent,omitempty" db:"-"`
}

// NewKey is a key that was just made. Key is the key itself, which nothing can show again.
type NewKey struct {
	Key       string     `json:"key" db:"-"`
	ID        int64      `json:"id"`
	Hint      string     `json:"hint"`
	Name      *string    `json:"name"`
	User      string     `json:"user"`
	Tier      *string    `json:"tier"`
	ExpiresAt *time.Time `json:"expires_at"`
	// Replaces is the key that the new one replaces, which is valid until ReplacedAt.
	Replaces   *int64     `json:"replaces,omitempty" db:"-"`
	ReplacedAt *time.Time `json:"replaced_at,omitempty" db:"-"`
}

var keyColumns = `k.id, hint, name, k.user_id, tier, CASE WHEN revoked_at <= now() THEN 'revoked' WHEN expires_at <= now() THEN 'expired'
	WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.key_id = k.id AND b.until > now()) OR EXISTS (SELECT FROM rate_limit_bans b WHERE b.user_id = k.user_id AND b.until > now()) THEN 'banned' ELSE 'valid' END,
	` + endSQL("expires_at") + `, ` + endSQL("revoked_at") + `, revoked_by, replaced_by, created_at`

// Keys returns the keys of a user, or of all users for "", the oldest first, at most so many.
func (d *Database) Keys(ctx context.Context, user string, most int) ([]Key, error) {
	return rows[Key](ctx, d, "SELECT "+keyColumns+" FROM rate_limit_api_keys k WHERE $1::text IN ('', k.user_id) ORDER BY k.id LIMIT $2::bigint", user, int64(most))
}

// KeysWithUsage is Keys with what each key did recently.
func (d *Database) KeysWithUsage(ctx context.Context, user string, most int) ([]Key, error) {
	w := d.work(ctx)
	var all []Key
	all, w.err = d.Keys(ctx, user, most)
	users, ids := make([]string, len(all)), make([]int64, len(all))
	for i := range all {
		users[i], ids[i] = all[i].User, all[i].ID
	}
	for i, r := range w.recent(users, ids) {
		all[i].Recent = &r
	}
	return all, w.err
}

// CreateKey makes a key. name may be "", a tier of "" is that of the user, and the zero time is never.
func (d *Database) CreateKey(ctx context.Context, user, name, tier string, expires time.Time) (*NewKey, error) {
	if err := d.checkTier(ctx, "--tier", tier); err != nil {
		return nil, err
	}
	made, err := d.insertKey(ctx, `SELECT $1, $2, user_id, nullif($4::text, ''), $5::timestamptz, nullif($6::text, '') FROM rate_limit_users WHERE user_id = $3`,
		user, name, timeOrInfinity(expires), tier)
	if err == nil && made == nil {
		err = d.noUser(ctx, user)
	}
	return made, err
}

// insertKey makes a key, and stores the row that a SELECT returns, if it returns one. $1 is the key's digest and
// $2 its hint. args are the other parameters.
func (d *Database) insertKey(ctx context.Context, sql string, args ...any) (*NewKey, error) {
	key, err := policy.NewKey()
	if err != nil {
		return nil, err
	}
	digest, hint := policy.Digest(key), policy.Hint(key)
	made, err := row[NewKey](ctx, d, "INSERT INTO rate_limit_api_keys (digest, hint, user_id, name, expires_at, tier) "+sql+
		" RETURNING id, hint, name, user_id, tier, "+endSQL("expires_at"), append([]any{digest[:], hint}, args...)...)
	if made != nil {
		made.Key = key
	}
	return made, err
}

// RevokeKey ends a key now.
func (d *Database) RevokeKey(ctx context.Context, id int64) (*Key, error) {
	if _, err := d.execute(ctx, `UPDATE rate_limit_api_keys SET revoked_at = now(), revoked_by = session_user
WHERE id = $1 AND (revoked_at IS NULL OR revoked_at > now())`, id); err != nil {
		return nil, err
	}
	return d.key(ctx, id)
}

// key returns a key by its id.
func (d *Database) key(ctx context.Context, id int64) (*Key, error) {
	found, err := row[Key](ctx, d, "SELECT "+keyColumns+" FROM rate_limit_api_keys k WHERE k.id = $1", id)
	if err == nil && found == nil {
		err = noKey(id)
	}
	return found, err
}

// noKey is the error about a key that is not in the database.
func noKey(id int64) error {
	return notFound(fmt.Sprintf("key: %d: no key has this id, see: caddy pg-ratelimit keys list", id))
}

// RotateKey makes a key in place of a valid one, with its name, tier, end, overrides and bans, and
// ends the old key after the grace.
func (d *Database) RotateKey(ctx context.Context, id int64, grace time.Duration) (made *NewKey, err error) {
	err = d.together(ctx, func(w *work) {
		w.execute("SELECT FROM rate_limit_api_keys WHERE id = $1 FOR UPDATE", id)
		old, err := w.key(ctx, id)
		if err == nil && old.ReplacedBy != nil {
			err = fmt.Errorf("key: %d: it was replaced by the key %d already", id, *old.ReplacedBy)
		} else if err == nil && old.State != "valid" && old.State != "banned" {
			err = fmt.Errorf("key: %d: it is %s: make a new one with: caddy pg-ratelimit keys create", id, old.State)
		}
		if err == nil {
			made, err = w.insertKey(ctx, `SELECT $1, $2, user_id, name, expires_at, tier FROM rate_limit_api_keys WHERE id = $3`, id)
		}
		if w.fail(err); w.err != nil {
			return
		}
		w.execute(`INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, burst, valid, reason)
	SELECT rule, limit_name, $2::bigint, events, burst, valid, reason FROM rate_limit_overrides WHERE key_id = $1`, id, made.ID)
		w.execute(`INSERT INTO rate_limit_bans (key_id, until, reason, times, banned_at, banned_by)
	SELECT $2::bigint, until, reason, times, banned_at, banned_by FROM rate_limit_bans WHERE key_id = $1`, id, made.ID)
		for _, ends := range some[*time.Time](w, `UPDATE rate_limit_api_keys SET revoked_at = least(revoked_at, now() + $3::interval),
	revoked_by = session_user, replaced_by = $2 WHERE id = $1 RETURNING `+endSQL("least(revoked_at, expires_at)"), id, made.ID, intervalOf(grace)) {
			made.Replaces, made.ReplacedAt = &id, ends
		}
	})
	return made, err
}

// Known is whom the policy knows by a name: a user, an API key, or the number of one. Kind is "user", "key" or "key_id".
type Known struct {
	Kind, User string
	KeyID      int64 // of an API key, else 0
}

// Who is whom the policy knows by a name, of a kind unless it is "": first a user, then an API key, then one of this number.
// It is nil for nobody, and an error for a number that no key has, if that is the kind.
func (d *Database) Who(ctx context.Context, name, kind string, number int64) (*Known, error) {
	if !d.HasPolicy(ctx) {
		return nil, nil
	}
	digest := policy.Digest(name)
	found, err := row[Known](ctx, d, `SELECT * FROM (
	SELECT 'user' AS kind, user_id, 0::bigint FROM rate_limit_users WHERE user_id = $1
	UNION ALL SELECT 'key', user_id, id FROM rate_limit_api_keys WHERE digest = $2::bytea
	UNION ALL SELECT 'key_id', user_id, id FROM rate_limit_api_keys WHERE id = $3
) AS known WHERE $4::text IN ('', kind) ORDER BY array_position('{user,key,key_id}'::text[], kind) LIMIT 1`, name, digest[:], number, kind)
	if err == nil && found == nil && kind == "key_id" {
		err = noKey(number)
	}
	return found, err
}

// UserOfKey is the user of an API key.
func (d *Database) UserOfKey(ctx context.Context, id int64) (string, error) {
	key, err := d.key(ctx, id)
	if err != nil {
		return "", err
	}
	return key.User, nil
}
