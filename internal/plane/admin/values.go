package admin

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// parseWhole reads a whole number.
func parseWhole(field, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, &ratelimit.FieldError{Field: field, Value: text, Want: "a whole number"}
	}
	return n, nil
}

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

const wantNetwork = "a network or an address, such as 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32"

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
		return network, &ratelimit.FieldError{Field: field, Value: text, Want: wantNetwork}
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

// parseNetworks reads networks with commas between them, as Postgres writes them.
func parseNetworks(field, text string) ([]string, error) {
	list, err := parseList(field, text)
	if err != nil {
		return nil, err
	}
	for i := range list {
		network, err := ParseNetwork(field, list[i])
		if err != nil {
			return nil, err
		}
		list[i] = network.String()
	}
	return list, nil
}

const wantTime = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"

// ParseTime reads a point in time. A day begins at midnight UTC. The error is a
// *ratelimit.FieldError about the field.
func ParseTime(field, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, &ratelimit.FieldError{Field: field, Value: text, Want: wantTime}
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

const wantRange = "FROM..UNTIL, where either may be missing, and a time is such as 2026-11-27 or 2026-11-27T18:00:00Z"

// parseRange reads FROM..UNTIL as a range of Postgres.
func parseRange(field, text string) (string, error) {
	from, until, found := strings.Cut(text, "..")
	if !found {
		return "", &ratelimit.FieldError{Field: field, Value: text, Want: wantRange}
	}
	var times [2]time.Time
	var ends [2]string
	for i, end := range []string{from, until} {
		if end == "" {
			continue
		}
		t, err := ParseTime(field, end)
		times[i] = t.UTC()
		if year := times[i].Year(); err != nil || year < 1 || year > 9999 {
			return "", &ratelimit.FieldError{Field: field, Value: text, Want: wantRange}
		}
		ends[i] = times[i].Format(time.RFC3339Nano)
	}
	if ends[0] != "" && ends[1] != "" && !times[0].Before(times[1]) {
		return "", &ratelimit.FieldError{Field: field, Value: text, Want: "a range that ends after it begins"}
	}
	return "[" + ends[0] + "," + ends[1] + ")", nil
}

// parseDuration reads a duration as an interval of Postgres.
func parseDuration(field, text string) (string, error) {
	d, err := ratelimit.ParseWindow(text)
	if err != nil {
		return "", &ratelimit.FieldError{Field: field, Value: text, Want: "a duration such as 30s, 5m or 1d"}
	}
	return intervalOf(d), nil
}

// intervalOf returns a duration as an interval of Postgres. The interval has no days and no
// months, because their lengths vary.
func intervalOf(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

// assignment is name=value. An empty value takes the setting back.
type assignment struct{ name, value string }

// parseAssignments splits texts of the form name=value. known are the names that are allowed;
// isKnown allows others.
func parseAssignments(texts, known []string, isKnown func(name string) bool) ([]assignment, error) {
	var all []assignment
	seen := map[string]bool{}
	for _, text := range texts {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return nil, fmt.Errorf("%q: must be name=value, where the name is one of %s", text, strings.Join(known, ", "))
		}
		if !isKnown(name) && !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: unknown: must be %s", name, edge.Among(name, known))
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: must be given once; lists have commas, as in paths=/a/*,/b", name)
		}
		seen[name] = true
		all = append(all, assignment{name, value})
	}
	if len(all) == 0 {
		return nil, errors.New("nothing to set: give one or more of " + strings.Join(known, ", ") + ", each as name=value")
	}
	return all, nil
}
