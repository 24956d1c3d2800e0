package admin

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// User is a user with all that the policy knows of it. Its JSON is the Row, which has the other fields, too.
type User struct {
	// Row has the columns of the user, those of rate_limit_recent, and the lists keys, overrides, bans and usage.
	Row
	User string
	// Tier is nil for a user that has a ban or a counter and no row.
	Tier            *string
	Keys, Overrides []Row
	Bans            []Ban
	Usage           []Usage
}

var userSQL = `SELECT n.name AS "user", ` + answerSQL(columns.Tables[columns.Users].Columns[1:], "u") + `, u.created_at, u.updated_at, r.*
FROM (SELECT $1::text) AS n(name) LEFT JOIN rate_limit_users u ON u.user_id = n.name LEFT JOIN LATERAL rate_limit_recent(n.name) AS r ON true`

var userOverridesSQL = `SELECT o.rule, o.limit_name AS "limit", o.key_id, o.events, o.burst,
	` + beginSQL("lower(o.valid)") + ` AS valid_from, ` + endSQL("upper(o.valid)") + ` AS valid_until, o.reason
FROM rate_limit_overrides o WHERE o.user_id = $1 OR o.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)
ORDER BY o.rule, o.limit_name, o.key_id NULLS FIRST, lower(o.valid) NULLS FIRST`

// User returns a user. A user that only has a ban is found too.
func (d *Database) User(ctx context.Context, name string) (User, error) {
	w := d.work(ctx)
	u := w.user(name)
	if w.err == nil && u.Tier == nil && len(u.Bans) == 0 {
		w.fail(noUser(name))
	}
	if w.err != nil {
		return u, w.err
	}
	u.Usage, w.err = d.userUsage(ctx, name)
	u.Set("bans", u.Bans)
	u.Set("usage", u.Usage)
	return u, w.err
}

// user returns a user, without its Usage, and without the bans in the Row.
func (w *work) user(name string) User {
	u := User{User: name}
	for _, u.Row = range w.ask(userSQL, name) {
		if tier, isUser := u.Get("tier").(string); isUser {
			u.Tier = &tier
		}
	}
	var err error
	u.Keys, u.Overrides = w.ask(KeysQuestion, name, int64(math.MaxInt64)), w.ask(userOverridesSQL, name)
	u.Bans, err = w.bans(w.ctx, "b.user_id = $1 OR b.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)", name)
	w.fail(err)
	u.Set("keys", u.Keys)
	u.Set("overrides", u.Overrides)
	return u
}

// DeleteUser deletes a user with its keys and overrides, and returns it with the bans of keys, which go along. A ban of the
// user stays, which the column still_banned says: proxies may know the user from elsewhere. So do the counters, which end by
// themselves, and the history.
func (d *Database) DeleteUser(ctx context.Context, name string) (gone User, err error) {
	err = d.together(ctx, func(w *work) {
		// No key of the user can be made from here on.
		w.execute("SELECT FROM rate_limit_users WHERE user_id = $1 FOR UPDATE", name)
		gone = w.user(name)
		if w.err == nil && gone.Tier == nil {
			w.fail(noUser(name))
		}
		all := len(gone.Bans)
		gone.Bans = slices.DeleteFunc(gone.Bans, func(b Ban) bool { return b.Kind == "user" })
		gone.Set("bans", gone.Bans)
		gone.Set("still_banned", len(gone.Bans) < all)
		w.execute("DELETE FROM rate_limit_users WHERE user_id = $1", name)
	})
	return gone, err
}

// noUser is the error about a user that is not in the database.
func noUser(name string) error {
	return notFound(fmt.Sprintf("user: %q: not in the database: make it with: caddy pg-ratelimit users set USER tier=TIER", name))
}
