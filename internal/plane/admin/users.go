package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// User is a user with all that the policy knows of it.
type User struct {
	User string `json:"user"`
	// Tier is nil for a user that has a ban or a counter and no row.
	Tier *string `json:"tier"`
	// TierUntil is nil for never.
	TierUntil   *time.Time `json:"tier_until"`
	PeriodStart *string    `json:"period_start"`
	TimeZone    *string    `json:"time_zone"`
	Comment     *string    `json:"comment"`
	CreatedAt   *time.Time `json:"created_at"`
	UpdatedAt   *time.Time `json:"updated_at"`

	Keys      []Key      `json:"keys" db:"-"`
	Overrides []Override `json:"overrides" db:"-"`
	Bans      []Ban      `json:"bans" db:"-"`
	Usage     []Usage    `json:"usage" db:"-"`
	// Recent is nil if no usage was recorded.
	Recent *Recent `json:"recent" db:"-"`
}

// Override is another amount of a limit, for a user or one of its keys.
type Override struct {
	Rule  string `json:"rule"`
	Limit string `json:"limit"`
	// KeyID is nil for all requests of the user.
	KeyID *int64 `json:"key_id"`
	// Events is nil for unlimited.
	Events *int64 `json:"events"`
	// Burst is nil for that of the limit.
	Burst *int64 `json:"burst"`
	// ValidFrom and ValidUntil are nil for no bound.
	ValidFrom  *time.Time `json:"valid_from"`
	ValidUntil *time.Time `json:"valid_until"`
	Reason     *string    `json:"reason"`
}

var userSQL = `SELECT user_id, tier, ` + endSQL("tier_until") + `, period_start::text, time_zone, comment, created_at, updated_at
FROM rate_limit_users WHERE user_id = $1`

var userOverridesSQL = `SELECT o.rule, o.limit_name, o.key_id, o.events, o.burst,
	` + beginSQL("lower(o.valid)") + `, ` + endSQL("upper(o.valid)") + `, o.reason
FROM rate_limit_overrides o WHERE o.user_id = $1 OR o.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)
ORDER BY o.rule, o.limit_name, o.key_id NULLS FIRST, lower(o.valid) NULLS FIRST`

// User returns a user. A user that only has a ban is found too.
func (d *Database) User(ctx context.Context, name string) (User, error) {
	u, err := d.user(ctx, name)
	if err == nil && u.Tier == nil && len(u.Bans) == 0 {
		err = d.noUser(ctx, name)
	}
	if err != nil {
		return u, err
	}
	if u.Usage, err = d.userUsage(ctx, name); err != nil {
		return u, err
	}
	recent, err := d.recent(ctx, []string{name}, []int64{allKeys})
	if len(recent) == 1 {
		u.Recent = &recent[0]
	}
	return u, err
}

// user returns a user without its Usage and Recent. The Tier is nil if the database has no row of the user.
func (d *Database) user(ctx context.Context, name string) (User, error) {
	found, err := row[User](ctx, d, userSQL, name)
	if err != nil {
		return User{}, err
	}
	u := User{User: name}
	if found != nil {
		u = *found
	}
	if u.Keys, err = d.KeysWithUsage(ctx, name, math.MaxInt); err != nil {
		return u, err
	}
	if u.Overrides, err = rows[Override](ctx, d, userOverridesSQL, name); err != nil {
		return u, err
	}
	u.Bans, err = d.bans(ctx, "b.user_id = $1 OR b.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)", name)
	return u, err
}

// DeletedUser is a user that was deleted, with the keys, the overrides and the bans of keys that went
// along.
type DeletedUser struct {
	User
	// StillBanned: the name of the user is banned, as it was before.
	StillBanned bool `json:"still_banned"`
}

// DeleteUser deletes a user with its keys and overrides. A ban of the user stays: proxies may know the
// user from elsewhere. So do the counters, which end by themselves, and the history.
func (d *Database) DeleteUser(ctx context.Context, name string) (gone DeletedUser, err error) {
	err = d.together(ctx, func(w *work) {
		// No key of the user can be made from here on.
		w.execute("SELECT FROM rate_limit_users WHERE user_id = $1 FOR UPDATE", name)
		u, err := w.user(ctx, name)
		if err == nil && u.Tier == nil {
			err = w.noUser(ctx, name)
		}
		w.fail(err)
		gone.User = u
		gone.Bans = slices.DeleteFunc(u.Bans, func(b Ban) bool { return b.Kind == "user" })
		gone.StillBanned = len(gone.Bans) < len(u.Bans)
		gone.Usage = []Usage{}
		w.execute("DELETE FROM rate_limit_users WHERE user_id = $1", name)
	})
	return gone, err
}

// noUser is the error about a user that is not in the database. It asks for a user whose name begins alike.
func (d *Database) noUser(ctx context.Context, name string) error {
	const begun, most = 2, 1000
	letters := []rune(name)
	others, err := d.UserNames(ctx, string(letters[:min(begun, len(letters))]), most)
	if err != nil {
		return err
	}
	return notFound(fmt.Sprintf("user: %q: not in the database%s: make it with: caddy pg-ratelimit users set USER tier=TIER", name, edge.DidYouMean(name, others)))
}

// UserNames are the names of users that begin with a text, at most so many.
func (d *Database) UserNames(ctx context.Context, prefix string, most int) ([]string, error) {
	return values[string](ctx, d, "SELECT user_id FROM rate_limit_users WHERE starts_with(user_id, $1::text) ORDER BY user_id LIMIT $2::bigint", prefix, int64(most))
}
