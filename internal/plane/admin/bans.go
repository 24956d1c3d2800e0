package admin

import (
	"context"
	"fmt"
	"net/netip"
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
	BannedAt time.Time  `json:"banned_at"`
	BannedBy string     `json:"banned_by"`
}

var bansSQL = `SELECT b.kind, b.banned, ` + endSQL("b.until") + `, b.reason, b.banned_at, b.banned_by
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
	sql := fmt.Sprintf("SELECT rate_limit_ban(%s => $1::text::%s, until => $2::timestamptz, "+
		"reason => nullif($3::text, ''))", column.name, column.kind)
	if _, err := d.execute(ctx, sql, which, timeOrInfinity(until), reason); err != nil {
		return nil, err
	}
	made, err := first(d.bans(ctx, fmt.Sprintf("b.%s = $1::text::%s", column.name, column.kind), which))
	if err == nil && made == nil { // it was shorter than a round trip
		err = fmt.Errorf("until: %q: must be in the future of the server's clock", timeOrInfinity(until))
	}
	return made, err
}

// Unban lifts a ban: of a network that of exactly this network, in both forms if it is one of IPv4.
func (d *Database) Unban(ctx context.Context, kind, which string) error {
	column := bannable[kind]
	lifted, err := value[bool](ctx, d, fmt.Sprintf("SELECT rate_limit_unban(%s => $1::text::%s)", column.name,
		column.kind), which)
	if err != nil || *lifted {
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
