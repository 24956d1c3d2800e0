package admin

import (
	"context"
	"fmt"
	"time"
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
	found, err := row[User](ctx, d, userSQL, name)
	if err != nil {
		return User{}, err
	}
	u := User{User: name}
	if found != nil {
		u = *found
	}
	if u.Keys, err = d.KeysWithUsage(ctx, name); err != nil {
		return u, err
	}
	if u.Overrides, err = rows[Override](ctx, d, userOverridesSQL, name); err != nil {
		return u, err
	}
	if u.Bans, err = d.bans(ctx, "b.user_id = $1 OR b.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)", name); err != nil {
		return u, err
	}
	if found == nil && len(u.Bans) == 0 {
		return u, noUser(name)
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

// noUser is the error about a user that is not in the database.
func noUser(name string) error {
	return notFound(fmt.Sprintf("user: %q: not in the database: make it with: caddy pg-ratelimit users set USER tier=TIER", name))
}

// UserNames are the names of users that begin with a text, at most so many.
func (d *Database) UserNames(ctx context.Context, prefix string, most int) ([]string, error) {
	return values[string](ctx, d, "SELECT user_id FROM rate_limit_users WHERE starts_with(user_id, $1::text) ORDER BY user_id LIMIT $2::bigint", prefix, int64(most))
}

// Tiers are the names of all tiers, in the order of their ranks.
func (d *Database) Tiers(ctx context.Context) ([]string, error) {
	return values[string](ctx, d, "SELECT tier FROM rate_limit_tiers ORDER BY rank, tier")
}
