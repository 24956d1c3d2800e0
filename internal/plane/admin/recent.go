package admin

import (
	"context"
	"time"
)

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
func (d *Database) recent(ctx context.Context, users []string, keys []int64) ([]Recent, error) {
	readable, err := value[bool](ctx, d, `SELECT to_regclass('rate_limit_usage_now') IS NOT NULL
	AND has_table_privilege(to_regclass('rate_limit_usage'), 'SELECT') AND has_table_privilege(to_regclass('rate_limit_usage_now'), 'SELECT')`)
	if err != nil || !*readable {
		return nil, err
	}
	recorded, err := value[bool](ctx, d, "SELECT EXISTS (SELECT FROM rate_limit_usage)")
	if err != nil || !*recorded {
		return nil, err
	}
	return rows[Recent](ctx, d, recentSQL, users, keys)
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
	all, err := rows[ListedUser](ctx, d, `SELECT u.user_id, u.tier, CASE WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.user_id = u.user_id AND b.until > now()) THEN 'banned'
	WHEN EXISTS (SELECT FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND o.events = 0 AND o.valid @> now()) THEN 'blocked' ELSE 'active' END
FROM (SELECT u.user_id, u.tier FROM rate_limit_users u WHERE $1::text IN ('', u.tier) ORDER BY `+last+`u.user_id LIMIT $2::bigint) u`, tier, int64(most))
	if err != nil {
		return nil, err
	}
	names, keys := make([]string, len(all)), make([]int64, len(all))
	for i := range all {
		names[i], keys[i] = all[i].User, allKeys
	}
	recent, err := d.recent(ctx, names, keys)
	for i := range recent {
		all[i].Recent = &recent[i]
	}
	return all, err
}
