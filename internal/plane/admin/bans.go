package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

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

var bansSQL = `SELECT CASE WHEN b.network IS NOT NULL THEN 'network' WHEN b.user_id IS NOT NULL THEN 'user' ELSE 'key' END,
	coalesce(b.network::text, b.user_id, b.key_id::text), ` + endSQL("b.until") + `, b.reason, b.times, b.banned_at, b.banned_by
FROM rate_limit_bans b WHERE b.until > now() AND (%s) ORDER BY b.network, b.user_id, b.key_id`

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

// BanNetwork shuts a network out until a time, or for ever if it is the zero time. A ban that
// is in force is changed. reason may be "".
func (d *Database) BanNetwork(ctx context.Context, network netip.Prefix, until time.Time, reason string) (*Ban, error) {
	return d.ban(ctx, "network", "cidr", network.String(), until, reason)
}

// BanUser is BanNetwork for a user, also one that only the proxies know.
func (d *Database) BanUser(ctx context.Context, user string, until time.Time, reason string) (*Ban, error) {
	return d.ban(ctx, "user_id", "text", user, until, reason)
}

// BanKey is BanNetwork for an API key.
func (d *Database) BanKey(ctx context.Context, id int64, until time.Time, reason string) (*Ban, error) {
	return d.ban(ctx, "key_id", "bigint", strconv.FormatInt(id, 10), until, reason)
}

func (d *Database) ban(ctx context.Context, column, kind, value string, until time.Time, reason string) (*Ban, error) {
	sql := fmt.Sprintf(`INSERT INTO rate_limit_bans (%[1]s, until, reason, banned_by) VALUES ($1::text::%[2]s, $2::timestamptz, nullif($3::text, ''), %[3]s)
ON CONFLICT (%[1]s) DO UPDATE SET until = excluded.until, reason = excluded.reason, banned_at = now(), banned_by = excluded.banned_by`, column, kind, actorSQL)
	if _, err := d.execute(ctx, sql, value, timeOrInfinity(until), reason); err != nil {
		return nil, err
	}
	made, err := first(d.bans(ctx, fmt.Sprintf("b.%s = $1::text::%s", column, kind), value))
	if err == nil && made == nil {
		err = fmt.Errorf("until: %q: must be in the future of the server's clock", timeOrInfinity(until))
	}
	return made, err
}

// UnbanNetwork lifts the ban of exactly this network, in both forms if it is one of IPv4.
func (d *Database) UnbanNetwork(ctx context.Context, network netip.Prefix) error {
	n, err := d.execute(ctx, "DELETE FROM rate_limit_bans WHERE rate_limit_network(network) = rate_limit_network($1::text::inet)", network.String())
	if err != nil || n > 0 {
		return err
	}
	others, err := d.bans(ctx, "rate_limit_network(b.network) && rate_limit_network($1::text::inet)", network.String())
	if err != nil {
		return err
	}
	var names []string
	for _, ban := range others {
		names = append(names, ban.Banned)
	}
	text := fmt.Sprintf("network: %q: not banned", network)
	if len(names) > 0 {
		text += "; banned are " + strings.Join(names, ", ")
	}
	return notFound(text)
}

// UnbanUser lifts the ban of a user.
func (d *Database) UnbanUser(ctx context.Context, user string) error {
	n, err := d.execute(ctx, "DELETE FROM rate_limit_bans WHERE user_id = $1", user)
	if err != nil || n > 0 {
		return err
	}
	return notFound(fmt.Sprintf("user: %q: not banned", user))
}

// UnbanKey lifts the ban of an API key.
func (d *Database) UnbanKey(ctx context.Context, id int64) error {
	n, err := d.execute(ctx, "DELETE FROM rate_limit_bans WHERE key_id = $1", id)
	if err != nil || n > 0 {
		return err
	}
	return notFound(fmt.Sprintf("key: %d: not banned", id))
}
