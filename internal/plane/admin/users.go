package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
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
	w := d.work(ctx)
	u := w.user(name)
	if w.err == nil && u.Tier == nil && len(u.Bans) == 0 {
		w.fail(d.noUser(ctx, name))
	}
	if w.err != nil {
		return u, w.err
	}
	u.Usage, w.err = d.userUsage(ctx, name)
	for _, r := range w.recent([]string{name}, []int64{allKeys}) {
		u.Recent = &r
	}
	return u, w.err
}

// user returns a user without its Usage and Recent. The Tier is nil if the database has no row of the user.
func (w *work) user(name string) User {
	u := User{User: name}
	for _, found := range list[User](w, userSQL, name) {
		u = found
	}
	var err error
	u.Keys, err = w.KeysWithUsage(w.ctx, name, math.MaxInt)
	w.fail(err)
	u.Overrides = list[Override](w, userOverridesSQL, name)
	u.Bans, err = w.bans(w.ctx, "b.user_id = $1 OR b.key_id IN (SELECT id FROM rate_limit_api_keys WHERE user_id = $1)", name)
	w.fail(err)
	return u
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
		u := w.user(name)
		if w.err == nil && u.Tier == nil {
			w.fail(w.noUser(ctx, name))
		}
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

// Recent is what a user, or one of its keys, did today and in this month, in UTC.
type Recent struct {
	Today     int64 `json:"today"`
	ThisMonth int64 `json:"this_month"`
	// Refused are all requests of this month that were refused. Limited are those of them that a limit
	// refused, with status 429, and Denied those that were refused with status 401 or 403.
	Refused int64 `json:"refused"`
	Limited int64 `json:"limited"`
	Denied  int64 `json:"denied"`
	// LastRequest is nil if there was none.
	LastRequest *time.Time `json:"last_request"`
	// Resets is when all limits that count by user, or by key, have their full quota again. It is nil
	// if they have it.
	Resets *time.Time `json:"resets"`
}

// ListedUser is a user in a list. Recent is nil if no usage was recorded.
type ListedUser struct {
	User string `json:"user"`
	Tier string `json:"tier"`
	// State is banned; blocked, if an override of 0 refuses the user; or active.
	State  string  `json:"state"`
	Recent *Recent `json:"recent,omitempty" db:"-"`
}

// recentSQL has a row for each user of $1 and key of $2, in their order. The key -1 is all requests
// of the user.
const recentSQL = `SELECT n.today, n.this_month, n.refused, n.limited, n.denied,
	(SELECT h.last_request FROM rate_limit_usage h WHERE h.user_id = w.name AND w.key IN (-1, h.key_id) ORDER BY h.day DESC, h.last_request DESC LIMIT 1),
	(SELECT max(CASE l.algorithm WHEN 'gcra' THEN c.last_refill ELSE c.expires_at END) FROM rate_limit_rules r JOIN rate_limit_rule_limits l ON l.rule = r.name
		CROSS JOIN LATERAL rate_limit_rows('rule/' || r.counter || '/' || l.name, l.durable) c
		JOIN LATERAL rate_limit_counted(r.count_by, c.key) d ON d.dimension = CASE w.key WHEN -1 THEN 'user' ELSE 'key' END AND d.part = own.part
		WHERE c.key COLLATE "C" = ANY (ARRAY(SELECT number || own.part FROM ` + alternatives + `)) AND c.expires_at > now())
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS w(name, key, number)
-- As proxies write the key of a counter.
CROSS JOIN LATERAL (SELECT CASE w.key WHEN -1 THEN regexp_replace(replace(replace(w.name, '%', '%25'), ' ', '%20'), '^ip:', 'ip%3A') ELSE w.key::text END AS part) own
CROSS JOIN LATERAL (
	SELECT coalesce(sum(n.today), 0)::bigint AS today, coalesce(sum(n.this_month), 0)::bigint AS this_month, coalesce(sum(n.refused), 0)::bigint AS refused,
		coalesce(sum(n.limited), 0)::bigint AS limited, coalesce(sum(n.denied), 0)::bigint AS denied
	FROM rate_limit_usage_now n WHERE n.user_id = w.name AND w.key IN (-1, n.key_id)) n
ORDER BY w.number`

// allKeys stands for all requests of a user in recentSQL.
const allKeys = -1

// recent returns what users and keys did recently, and nil if no usage was recorded, where zeros would say
// that there was no request, or if the role may not read it.
func (w *work) recent(users []string, keys []int64) []Recent {
	readable := some[bool](w, `SELECT true WHERE to_regclass('rate_limit_usage_now') IS NOT NULL
	AND has_table_privilege(to_regclass('rate_limit_usage'), 'SELECT') AND has_table_privilege(to_regclass('rate_limit_usage_now'), 'SELECT')`)
	if len(readable) == 0 || w.lacks("SELECT true FROM rate_limit_usage LIMIT 1") {
		return nil
	}
	return list[Recent](w, recentSQL, users, keys)
}

// The orders of Users.
const (
	ByName = "name"
	ByLast = "last"
)

// Users returns the users of a tier, or of all tiers for "", in the order of their names, or, by the history, first those
// that have sent no request for the longest time; at most so many.
func (d *Database) Users(ctx context.Context, tier, order string, most int) ([]ListedUser, error) {
	last := ""
	if order == ByLast {
		last = "(SELECT max(h.last_request) FROM rate_limit_usage h WHERE h.user_id = u.user_id) NULLS FIRST, "
	}
	w := d.work(ctx)
	all := list[ListedUser](w, `SELECT u.user_id, u.tier, CASE WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.user_id = u.user_id AND b.until > now()) THEN 'banned'
	WHEN EXISTS (SELECT FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND o.events = 0 AND o.valid @> now()) THEN 'blocked' ELSE 'active' END
FROM (SELECT u.user_id, u.tier FROM rate_limit_users u WHERE $1::text IN ('', u.tier) ORDER BY `+last+`u.user_id LIMIT $2::bigint) u`, tier, int64(most))
	names, keys := make([]string, len(all)), make([]int64, len(all))
	for i := range all {
		names[i], keys[i] = all[i].User, allKeys
	}
	for i, r := range w.recent(names, keys) {
		all[i].Recent = &r
	}
	return all, w.err
}

// Tier is a tier, with what is on it.
type Tier struct {
	Tier string `json:"tier"`
	Rank int64  `json:"rank"`
	// Users and Keys are how many users are on the tier, and how many API keys have it as their own.
	Users int64 `json:"users"`
	Keys  int64 `json:"keys"`
	// Rules are the rules for the tier, and maybe for others.
	Rules   []string `json:"rules"`
	Comment *string  `json:"comment"`
}

// Tiers returns all tiers, in the order of their ranks.
func (d *Database) Tiers(ctx context.Context) ([]Tier, error) {
	return rows[Tier](ctx, d, `SELECT t.tier, t.rank, (SELECT count(*) FROM rate_limit_users u WHERE u.tier = t.tier), (SELECT count(*) FROM rate_limit_api_keys k WHERE k.tier = t.tier),
	ARRAY(SELECT r.name FROM rate_limit_rules r WHERE t.tier = ANY (r.tiers) ORDER BY r.name), t.comment
FROM rate_limit_tiers t ORDER BY t.rank, t.tier`)
}

// TierNames are the names of all tiers, in the order of their ranks.
func (d *Database) TierNames(ctx context.Context) ([]string, error) {
	return values[string](ctx, d, "SELECT tier FROM rate_limit_tiers ORDER BY rank, tier")
}

// RenameTier gives a tier another name, which its users, keys, overrides and rules then have.
func (d *Database) RenameTier(ctx context.Context, name, to string) error {
	return d.rename(ctx, "tier", "rate_limit_tiers", "tier", name, to, d.noTier)
}

// tierUsesSQL names what uses a tier, for people.
const tierUsesSQL = `SELECT n || ' ' || what || CASE n WHEN 1 THEN '' ELSE 's' END FROM (VALUES
	('user', (SELECT count(*) FROM rate_limit_users WHERE tier = $1::text)),
	('API key', (SELECT count(*) FROM rate_limit_api_keys WHERE tier = $1::text)),
	('override', (SELECT count(*) FROM rate_limit_overrides WHERE tier = $1::text))) AS u(what, n) WHERE n > 0
UNION ALL (SELECT format('the rule "%s"', name) FROM rate_limit_rules WHERE $1::text = ANY (tiers) ORDER BY name)`

// DeleteTier deletes a tier that nothing uses. The error names what uses it.
func (d *Database) DeleteTier(ctx context.Context, name string) error {
	if name == edge.DefaultTier {
		return fmt.Errorf("tier: %q: must stay: it is the tier of requests without a user", name)
	}
	return d.together(ctx, func(w *work) {
		// No user and no key can get the tier from here on.
		w.execute("SELECT FROM rate_limit_tiers WHERE tier = $1 FOR UPDATE", name)
		uses := some[string](w, tierUsesSQL, name)
		if len(uses) > 0 {
			w.fail(fmt.Errorf("tier: %q: is used by %s: change or delete these first, or see: caddy pg-ratelimit tiers rename", name, strings.Join(uses, ", ")))
		}
		if w.execute("DELETE FROM rate_limit_tiers WHERE tier = $1", name) == 0 && w.err == nil {
			w.fail(w.noTier(ctx, name))
		}
	})
}

// noTier is the error about a tier that is not in the database.
func (d *Database) noTier(ctx context.Context, name string) error {
	tiers, err := d.TierNames(ctx)
	if err != nil {
		return err
	}
	return notFound(fmt.Sprintf("tier: %q: must be %s", name, amongSome(name, tiers)))
}
