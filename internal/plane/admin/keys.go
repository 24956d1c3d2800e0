package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// NewKey is a key that was just made: its row, with the key, and with the key that it replaces.
type NewKey struct {
	Row
	// Key is the key itself, which nothing can show again.
	Key string
}

// CreateKey makes a key. name may be "", a tier of "" is that of the user, and the zero time is never.
func (d *Database) CreateKey(ctx context.Context, user, name, tier string, expires time.Time) (*NewKey, error) {
	made, err := d.makeKey(ctx, `INSERT INTO rate_limit_api_keys (digest, hint, user_id, name, expires_at, tier)
SELECT $1, $2, user_id, nullif($4::text, ''), $5::timestamptz, nullif($6::text, '') FROM rate_limit_users WHERE user_id = $3 RETURNING id`, user, name, timeOrInfinity(expires), tier)
	if err == nil && made == nil {
		err = noUser(user)
	}
	return made, withValue(err, "tier", "--tier", tier)
}

// RotateKey makes a key in place of a valid one, with its name, tier, end, counters, overrides and
// bans, and ends the old key after the grace.
func (d *Database) RotateKey(ctx context.Context, id int64, grace time.Duration) (*NewKey, error) {
	made, err := d.makeKey(ctx, "SELECT * FROM rate_limit_rotate_key($3, $4::interval, $1, $2)", id, intervalOf(grace))
	if err == nil && made == nil {
		err = noKey(id)
	}
	return made, err
}

// makeKey makes a key, and stores it by SQL that returns its id, and more columns for people; no row: there is no key. $1
// is the digest and $2 the hint of the key. args are the other parameters.
func (d *Database) makeKey(ctx context.Context, sql string, args ...any) (made *NewKey, err error) {
	key, err := policy.NewKey()
	if err != nil {
		return nil, err
	}
	digest := policy.Digest(key)
	err = d.together(ctx, func(w *work) {
		for _, stored := range w.ask(sql, append([]any{digest[:], policy.Hint(key)}, args...)...) {
			row, err := w.key(ctx, stored.Get("id").(int64))
			if w.fail(err); err != nil {
				return
			}
			for i, name := range stored.Names[1:] {
				row.Set(name, stored.Values[i+1])
			}
			row.Set("key", key)
			made = &NewKey{*row, key}
		}
	})
	return made, err
}

// RevokeKey ends a key now.
func (d *Database) RevokeKey(ctx context.Context, id int64) (*Row, error) {
	if _, err := d.execute(ctx, "SELECT rate_limit_revoke_key($1)", id); err != nil {
		return nil, err
	}
	return d.key(ctx, id)
}

// key returns a key by its id.
func (d *Database) key(ctx context.Context, id int64) (*Row, error) {
	found, err := first(d.Ask(ctx, "SELECT "+keyColumns+" FROM rate_limit_key_states k WHERE k.id = $1", id))
	if err == nil && found == nil {
		err = noKey(id)
	}
	return found, err
}

// noKey is the error about a key that is not in the database.
func noKey(id int64) error {
	return notFound(fmt.Sprintf("key: %d: no key has this id, see: caddy pg-ratelimit keys list", id))
}
