package policy

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// RuleLimit is a row of rate_limit_rule_limits.
type RuleLimit struct {
	// Name identifies the limit within its rule. Required.
	Name string
	// Limit has the algorithm and the amount, and in CountedAs the name by which it counts, or "" for Name.
	// Compile sets its Prefix, and the whole CountedAs. If Events is 0, no request passes.
	Limit ratelimit.Limit
	// Unit names what the limit counts. "" means option.Requests. Output is the output that a request is
	// charged before its response, if the limit counts tokens. 0 means the default.
	Unit   option.Unit
	Output int64
	// Batches is option.PassBatches if batches pass a limit that counts tokens.
	Batches string
	// Hidden hides the limit in responses: no field describes it.
	Hidden bool
	// Notify has the percentages of the quota that make a notice. Nil makes none.
	Notify []int64
	// Unlimited ignores Limit.Events: only requests with an override are limited.
	Unlimited bool
	// Overage counts beyond the quota and refuses no request. It needs a fixed or a sliding window.
	Overage bool
}

// LimitsSQL is an expression for the limits of a row r of rate_limit_rules, as the JSON of a []RuleLimit. In
// place of a zone that the server lacks, it has UTC, because decisions in that zone would fail.
var LimitsSQL = `(SELECT jsonb_agg(jsonb_build_object('Name', l.name, 'Unit', l.unit, 'Output', l.output,
	'Batches', l.batches, 'Hidden', NOT l.fields, 'Notify', l.notify, 'Unlimited', l.events IS NULL,
	'Overage', l.on_exceed = 'overage',
	'Limit', jsonb_build_object('Events', l.events,
	'Window', ` + durationSQL("l.per") + `,
	'Calendar', ` + positionSQL("NULL,day,week,month,year", "l.calendar") + `,
	'TimeZone', rate_limit_known_zone(l.time_zone), 'CountedAs', l.counted_as,
	'Algorithm', ` + positionSQL(algorithms(), "l.algorithm") + `, 'Burst', l.burst,
	'Durable', coalesce(l.durable, l.unit <> 'requests'))) ORDER BY l.name)
	FROM rate_limit_rule_limits l WHERE l.rule = r.name)`

// algorithms returns the names of the algorithms, by ratelimit.Algorithm.
func algorithms() string {
	var names []string
	for _, a := range ratelimit.Algorithms() {
		names = append(names, a.String())
	}
	return strings.Join(names, ",")
}

// Override is a row of rate_limit_overrides. It replaces the amount of one limit for a tier, a user or an API
// key. Exactly one of Tier, User and KeyID is set.
type Override struct {
	Rule  string
	Limit string `json:"limit_name"`
	Tier  string
	User  string `json:"user_id"`
	KeyID int64  `json:"key_id"`

	// Events is the amount. If it is 0, no request passes. Unlimited ignores Events.
	Events    int64
	Unlimited bool
	// Burst replaces the burst of the limit. 0 keeps the limit's own burst.
	Burst int64
	// The override is valid from From until before Until, in microseconds since the Unix epoch. 0 sets no
	// bound.
	From, Until int64
}

// OverrideSQL is an expression for a row o of rate_limit_overrides, as the JSON of an Override.
var OverrideSQL = `(to_jsonb(o)
	|| jsonb_build_object('Unlimited', o.events IS NULL, ` + validSQL("o") + `))`

// Ban is a row of rate_limit_bans. It bans Network if Network is valid, else the API key with Digest if
// Digest is set, else User.
type Ban struct {
	Network netip.Prefix
	// Digest, KeyID and User identify a banned API key, or a key of a banned user. KeyID is the id of the
	// key's row, and User owns the key.
	Digest string
	KeyID  int64
	User   string
	// Until is the end of the ban, in microseconds since the Unix epoch. 0 means never.
	Until  int64
	Reason string
}

// Identity is an API key, or a user that the proxy authenticated. It must not be changed or copied after its
// first use.
type Identity struct {
	// Digest is the digest of the API key (see func Digest), or "" without an API key. User is then the user
	// that the proxy authenticated.
	Digest string
	// Known reports whether the database has the key or the user.
	Known bool
	// unread marks a sender that was not looked up: only Digest or User is set. Bans and the rules that do
	// not need the sender apply.
	unread bool
	// KeyID is the id of the key's row. It is 0 without an API key.
	KeyID int64
	// CountedAs is the id of the key that shares its counters with this key. 0 means KeyID.
	CountedAs int64

	// User is the authenticated user, or the owner of the key.
	User string
	// UserCountedAs, unless it is "", is the name by which User counts and is in the ledger.
	UserCountedAs string
	// Parent is the *Identity of the user above User, or nil: see ParentOf. The limits by user of all users
	// above apply, too.
	Parent any `json:"-"`
	// Tier is the key's own tier, else the user's. "" means Facts.DefaultTier.
	Tier string
	// TierUntil is the time from which Facts.DefaultTier replaces Tier, in microseconds since the Unix epoch.
	// 0 means never.
	TierUntil int64
	// PeriodStart anchors the user's billing periods: the months and years of limits by user or key start on
	// its day. Only the date is used. The zero time means calendar months and years.
	PeriodStart time.Time
	// TimeZone is the time zone of the billing periods. "" means the limit's time zone.
	TimeZone string

	// The key is valid until the earlier of ExpiresAt and RevokedAt, in microseconds since the Unix epoch. 0
	// means never.
	ExpiresAt, RevokedAt int64

	// Overrides has the overrides for this key and its user.
	Overrides []Override

	state atomic.Value // a *senderState
}

// identitiesSQL returns the API keys with the digests $1, and the users $2, each with its overrides. The
// statement is unnamed, so that the server plans it again when the tables have grown by orders of magnitude.
// A key's own tier has no end, so its TierUntil is NULL.
var identitiesSQL = `SELECT json_build_object('Identity', json_build_object('Digest', a.digest, 'KeyID', k.id,
	'CountedAs', k.counted_as, 'ExpiresAt', ` + timeSQL("k.expires_at") + `,
	'RevokedAt', ` + timeSQL("k.revoked_at") + `, 'Tier', coalesce(k.tier, u.tier),
	'TierUntil', CASE WHEN k.tier IS NULL THEN ` + timeSQL("u.tier_until") + ` END,
	` + userSQL("u", "o.key_id = k.id OR o.user_id = k.user_id") + `), ` + aboveSQL + `)::text
FROM rate_limit_users u JOIN rate_limit_api_keys k ON k.user_id = u.user_id
	JOIN unnest($1::text[]) AS a(digest) ON k.digest = decode(a.digest, 'hex')
UNION ALL
SELECT json_build_object('Identity', json_build_object('Tier', u.tier,
	'TierUntil', ` + timeSQL("u.tier_until") + `,
	` + userSQL("u", "o.user_id = u.user_id") + `), ` + aboveSQL + `)::text
FROM rate_limit_users u JOIN unnest($2::text[]) AS a(user_id) USING (user_id)` + wholeSQL + `::text`

// aboveSQL is the field Above for the row u of a user.
var aboveSQL = `'Above', CASE WHEN u.parent IS NOT NULL THEN (
	SELECT json_agg(json_build_object('Tier', p.tier, 'TierUntil', ` + timeSQL("p.tier_until") + `,
		` + userSQL("p", "o.user_id = p.user_id") + `) ORDER BY l.place)
	FROM rate_limit_lineage(u.user_id) l JOIN rate_limit_users p ON p.user_id = l.user_id
	WHERE l.place > 0) END`

// userSQL returns the fields that keys and users share, for the row of a user. condition selects the
// overrides o. A column NAME of a later numbered file is to_jsonb(row) -> 'NAME', since older tables lack it.
func userSQL(row, condition string) string {
	return `'User', ` + row + `.user_id, 'Known', true, 'UserCountedAs', ` + row + `.counted_as,
		'PeriodStart', ` + row + `.period_start::text || 'T00:00:00Z',
		'TimeZone', CASE WHEN ` + row + `.period_start IS NOT NULL
			THEN rate_limit_known_zone(` + row + `.time_zone) END,
		'Overrides', (SELECT json_agg(` + OverrideSQL + `) FROM rate_limit_overrides o
		WHERE (` + condition + `) AND ` + relevantSQL("o") + `)`
}

// CountsAs returns the name by which a user, a rule or a limit counts. countedAs is "" if it is name.
func CountsAs(name, countedAs string) string {
	if countedAs != "" {
		return countedAs
	}
	return name
}

// ParentOf returns the user above that of an identity, or nil. In a type that refers to itself, Yaegi would
// take other types of this package for two.
func ParentOf(id *Identity) *Identity {
	if id.Parent == nil {
		return nil
	}
	return id.Parent.(*Identity)
}
