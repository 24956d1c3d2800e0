package admin

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// parseList reads values with commas between them.
func parseList(field, text string) ([]string, error) {
	list := strings.Split(text, ",")
	for i, item := range list {
		list[i] = strings.TrimSpace(item)
		if list[i] == "" {
			return nil, &ratelimit.FieldError{Field: field, Value: text, Want: "values with commas between them"}
		}
	}
	return list, nil
}

// ParseNetwork reads a network, or an address as the network of this one address. A network
// of IPv4 addresses in IPv6 form becomes one of IPv4. The error is a *ratelimit.FieldError
// about the field.
func ParseNetwork(field, text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return network, &ratelimit.FieldError{Field: field, Value: text, Want: "a network or an address, such as 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32"}
	}
	if network != network.Masked() {
		return network, &ratelimit.FieldError{Field: field, Value: text, Want: "the first address of the network: " + network.Masked().String()}
	}
	if network.Addr().Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	return network, nil
}

// ParseAddress reads the address of a client. The error is a *ratelimit.FieldError about the field.
func ParseAddress(field, text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return address, &ratelimit.FieldError{Field: field, Value: text, Want: "an address such as 192.0.2.1 or 2001:db8::1"}
	}
	return address, nil
}

const wantTime = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"

// ParseTime reads a point in time. A day begins at midnight UTC. The error is a
// *ratelimit.FieldError about the field.
func ParseTime(field, text string) (time.Time, error) {
	if t, ok := readTime(text); ok {
		return t, nil
	}
	return time.Time{}, &ratelimit.FieldError{Field: field, Value: text, Want: wantTime}
}

// readTime reads a point in time, in UTC.
func readTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // the database has no more digits
		}
	}
	return time.Time{}, false
}

// ParseUntil reads when something ends: "never" (the zero time), a duration from now such as
// 24h or 90d, or a point in time. The error is a *ratelimit.FieldError about the field.
func ParseUntil(field, text string, now time.Time) (time.Time, error) {
	if text == "never" {
		return time.Time{}, nil
	}
	if d, err := ratelimit.ParseWindow(text); err == nil && d > 0 {
		return now.Add(d), nil
	}
	t, err := ParseTime(field, text)
	if err != nil {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: "a duration such as 24h or 90d, " + wantTime + ", or never"}
	}
	if !t.After(now) {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: "in the future"}
	}
	return t, nil
}

// intervalOf returns a duration as an interval of Postgres. The interval has no days and no
// months, because their lengths vary.
func intervalOf(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

// timeOrInfinity is a time as Postgres reads it. The zero time is infinity.
func timeOrInfinity(t time.Time) string {
	if t.IsZero() {
		return "infinity"
	}
	return t.UTC().Format(time.RFC3339Nano)
}
