package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// NewOverride is another amount of the limits of a rule for a while. One of User and KeyID is set.
type NewOverride struct {
	User  string
	KeyID int64
	// Limit "" is all limits of the rule.
	Rule, Limit string
	// Percent is how much more the sender gets than now, and Events, if it is not nil, the amount itself.
	Percent float64
	Events  *int64
	Until   time.Time
	Reason  string
}

// OverrideChange is an override that was made, or that can be deleted, and what that changes for its sender now.
type OverrideChange struct {
	ID     int64
	Holder string // a user, a key or a tier
	Text   string // such as "pro/per_minute: 20 → 22"
	Lowers bool   // the sender has less then
}

// changeSQL are the columns of an OverrideChange of a limit from an amount to another one; NULL is unlimited.
func changeSQL(override, from, to string) string {
	amount := func(events string) string {
		return "coalesce(to_char(" + events + ", 'FM9,999,999,999,999,999'), 'unlimited')"
	}
	columns := "{o}.id, coalesce({o}.user_id, 'key ' || {o}.key_id, 'tier ' || {o}.tier), " +
		"{o}.rule || '/' || {o}.limit_name || ': ' || " + amount(from) + " || ' → ' || " + amount(to) + ", coalesce({to} < coalesce({from}, {to} + 1), false)"
	return strings.NewReplacer("{o}", override, "{from}", from, "{to}", to).Replace(columns)
}

// giveSQL makes overrides for a user $3, or for an API key $4, of the limits $2 of a rule $1 that are not unlimited for the
// sender, with amounts of $5, or of $6 percent more than now, within their bounds. They are valid until $7, for a reason $8.
var giveSQL = `WITH amounts AS (
	SELECT l.name, CASE WHEN o.id IS NULL THEN l.events ELSE o.events END AS was, CASE WHEN o.id IS NULL THEN l.burst ELSE coalesce(o.burst, l.burst) END AS burst
	FROM rate_limit_rule_limits l
		LEFT JOIN LATERAL rate_limit_override_of(l.rule, l.name, nullif($3::text, ''), nullif($4::bigint, 0)) o ON true
	WHERE l.rule = $1::text AND $2::text IN ('', l.name)
), made AS (
	INSERT INTO rate_limit_overrides (rule, limit_name, user_id, key_id, events, burst, valid, reason, created_by)
	SELECT $1, name, nullif($3::text, ''), nullif($4::bigint, 0), coalesce($5::bigint, least(greatest(ceil(was * (100 + $6::numeric) / 100), 0), 9007199254740992)::bigint),
		CASE WHEN $5::bigint IS NULL AND burst IS NOT NULL THEN least(greatest(ceil(burst * (100 + $6::numeric) / 100), 1), 9007199254740992)::bigint END,
		tstzrange(now(), $7::timestamptz), nullif($8::text, ''), ` + actorSQL + `
	FROM amounts WHERE was IS NOT NULL OR $5::bigint IS NOT NULL ORDER BY name RETURNING *
)
SELECT ` + changeSQL("m", "a.was", "m.events") + ` FROM made m JOIN amounts a ON a.name = m.limit_name ORDER BY m.limit_name`

// SetOverride makes overrides that are valid from now on. The error says which field is wrong.
func (d *Database) SetOverride(ctx context.Context, o *NewOverride) ([]OverrideChange, error) {
	w := d.work(ctx)
	if o.User == "" && w.lacks("SELECT true FROM rate_limit_api_keys WHERE id = $1", o.KeyID) {
		w.fail(noKey(o.KeyID))
	} else if o.User != "" && w.lacks("SELECT true FROM rate_limit_users WHERE user_id = $1", o.User) {
		w.fail(d.noUser(ctx, o.User))
	}
	made := list[OverrideChange](w, giveSQL, o.Rule, o.Limit, o.User, o.KeyID, o.Events, fmt.Sprint(o.Percent), timeOrInfinity(o.Until), o.Reason)
	if w.err != nil || len(made) > 0 {
		return made, w.err
	}
	switch {
	case !w.lacks("SELECT true FROM rate_limit_rule_limits WHERE rule = $1 AND $2::text IN ('', name) LIMIT 1", o.Rule, o.Limit):
		w.fail(&ratelimit.FieldError{Field: "percent", Value: fmt.Sprint(o.Percent), Want: "an amount (events): the limit is unlimited for this sender"})
	case o.Limit != "":
		w.fail(d.missing(ctx, "limit", o.Rule+"/"+o.Limit))
	default:
		w.fail(d.missing(ctx, "rule", o.Rule))
	}
	return nil, w.err
}

// DeleteOverrides deletes the overrides of a sender for a rule, or one of its limits, that are valid now and end by themselves.
func (d *Database) DeleteOverrides(ctx context.Context, o *NewOverride) ([]OverrideChange, error) {
	gone, err := rows[OverrideChange](ctx, d, `WITH gone AS (
	DELETE FROM rate_limit_overrides WHERE (user_id = $1::text OR key_id = $2::bigint) AND rule = $3::text AND $4::text IN ('', limit_name)
		AND valid @> now() AND NOT upper_inf(valid) AND upper(valid) < 'infinity' RETURNING *)
SELECT `+changeSQL("h", "h.events", "CASE WHEN o.id IS NULL THEN l.events ELSE o.events END")+`
FROM gone h JOIN rate_limit_rule_limits l ON l.rule = h.rule AND l.name = h.limit_name
	LEFT JOIN LATERAL rate_limit_override_of(h.rule, h.limit_name, h.user_id, h.key_id, ARRAY(SELECT id FROM gone)) o ON true
ORDER BY h.rule, h.limit_name, h.id`, o.User, o.KeyID, o.Rule, o.Limit)
	if err == nil && len(gone) == 0 {
		err = notFound(fmt.Sprintf("override: the sender has none for %q that ends by itself", o.Rule))
	}
	return gone, err
}

// Ban shuts a network, a user or a key out.
type Ban struct {
	// Kind is network, user or key, and Banned which one.
	Kind   string `json:"kind"`
	Banned string `json:"banned"`
	// Until is nil for never.
	Until    *time.Time `json:"until"`
	Reason   *string    `json:"reason"`
	Times    int32      `json:"times"`
	BannedAt time.Time  `json:"banned_at"`
	BannedBy string     `json:"banned_by"`
}

var bansSQL = `SELECT b.kind, b.banned, ` + endSQL("b.until") + `, b.reason, b.times, b.banned_at, b.banned_by
FROM rate_limit_banned b WHERE %s ORDER BY b.network, b.user_id, b.key_id`

// bans returns the bans in force for which a condition holds.
func (d *Database) bans(ctx context.Context, condition string, args ...any) ([]Ban, error) {
	return rows[Ban](ctx, d, fmt.Sprintf(bansSQL, condition), args...)
}

// Bans returns all bans that are in force.
func (d *Database) Bans(ctx context.Context) ([]Ban, error) { return d.bans(ctx, "true") }

// IsWide reports whether a network is larger than any that one organisation holds: the largest
// assignments are an IPv4 /8 and an IPv6 /16. So its ban also shuts out others, and perhaps
// everybody.
func IsWide(network netip.Prefix) bool {
	if network.Addr().Is4() {
		return network.Bits() < 8
	}
	return network.Bits() < 16 || network.Overlaps(mapped) && network.Bits() < mapped.Bits()+8
}

// mapped are the IPv4 addresses in IPv6 form.
var mapped = netip.MustParsePrefix("::ffff:0:0/96")

// bannable are the columns of what a ban is for, and their types, by the kinds of bans.
var bannable = map[string]struct{ name, kind string }{"network": {"network", "cidr"}, "user": {"user_id", "text"}, "key": {"key_id", "bigint"}}

// Ban shuts a network, a user, also one that only the proxies know, or a key out until a time, or for ever if it is the zero
// time. kind and which are as in Ban. A ban that is in force is changed. reason may be "".
func (d *Database) Ban(ctx context.Context, kind, which string, until time.Time, reason string) (*Ban, error) {
	column := bannable[kind]
	sql := fmt.Sprintf(`INSERT INTO rate_limit_bans (%[1]s, until, reason, banned_by) VALUES ($1::text::%[2]s, $2::timestamptz, nullif($3::text, ''), %[3]s)
ON CONFLICT (%[1]s) DO UPDATE SET until = excluded.until, reason = excluded.reason, banned_at = now(), banned_by = excluded.banned_by`, column.name, column.kind, actorSQL)
	if _, err := d.execute(ctx, sql, which, timeOrInfinity(until), reason); err != nil {
		return nil, err
	}
	made, err := first(d.bans(ctx, fmt.Sprintf("b.%s = $1::text::%s", column.name, column.kind), which))
	if err == nil && made == nil {
		err = fmt.Errorf("until: %q: must be in the future of the server's clock", timeOrInfinity(until))
	}
	return made, err
}

// Unban lifts a ban: of a network that of exactly this network, in both forms if it is one of IPv4.
func (d *Database) Unban(ctx context.Context, kind, which string) error {
	same := bannable[kind].name + " = $1::text::" + bannable[kind].kind
	if kind == "network" {
		same = "rate_limit_network(network) = rate_limit_network($1::text::inet)"
	}
	n, err := d.execute(ctx, "DELETE FROM rate_limit_bans WHERE "+same, which)
	if err != nil || n > 0 {
		return err
	}
	text := fmt.Sprintf("%s: %q: not banned", kind, which)
	if kind != "network" {
		return notFound(text)
	}
	others, err := d.bans(ctx, "rate_limit_network(b.network) && rate_limit_network($1::text::inet)", which)
	if err != nil {
		return err
	}
	var names []string
	for _, ban := range others {
		names = append(names, ban.Banned)
	}
	if len(names) > 0 {
		text += "; banned are " + strings.Join(names, ", ")
	}
	return notFound(text)
}
