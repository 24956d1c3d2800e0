package caddymodule

import (
	"errors"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Rule is one limit: what it allows, and what is counted together.
type Rule struct {
	// The limit's name, and the namespace of its keys: limits of one prefix on
	// one database share their counters, whichever proxy they run in. 1 to 255
	// bytes of UTF-8. Required.
	Prefix string `json:"prefix,omitempty"`

	// What is counted together: requests with the same key share the quota.
	// Text with placeholders. A request for which it is empty shares with all
	// others of that kind. Default: `{http.vars.client_ip}`, the client's
	// address, which honours `trusted_proxies`.
	Key string `json:"key,omitempty"`

	// How requests are counted: `sliding_window` (smooth, two counters a key;
	// the default), `fixed_window` (from the first request until the window
	// has passed, or on the calendar), `token_bucket` (refilled with the
	// limit's events every window, holding up to `burst`), `sliding_log`
	// (exact, up to 1,000 events) or `gcra` (evenly spaced, up to `burst` at
	// once).
	Algorithm string `json:"algorithm,omitempty"`

	// How much may pass in what time, such as `100 1m` or `100/1m`. Units are
	// ms, s, m, h, d and w. A fixed window may follow the calendar:
	// `10000 1d calendar` or `10000 1mo calendar Europe/Berlin`, in UTC where
	// no time zone is named. Required.
	Limit string `json:"limit,omitempty"`

	// The most that may pass at once, for `token_bucket` and `gcra`. Default:
	// the limit's events. No other algorithm takes one.
	Burst int64 `json:"burst,omitempty"`

	// How much of the quota a request takes: a whole number of 1 or more, or a
	// placeholder that gives one. A request for which the placeholder gives 0
	// needs something left, but takes nothing; one for which it gives anything
	// but a whole number costs 1. Default: 1.
	Cost string `json:"cost,omitempty"`

	// Count in the table that survives a crash of the database server
	// (billing, quotas) rather than in the faster one that does not (abuse).
	Durable bool `json:"durable,omitempty"`

	// Answer only when the decision is flushed to the server's disk. Without
	// it, a crash loses the last fraction of a second. It does something only
	// where the limit is durable.
	SynchronousCommit bool `json:"synchronous_commit,omitempty"`

	// Store keys as SHA-256 digests, so that they cannot be read from the
	// database. Default: true where the key holds a placeholder of a
	// credential (Authorization; any cookie; a header, a query parameter or a
	// user's property with a name like token, secret, password or api-key;
	// the whole query), false elsewhere. Proxies that are to share counters
	// must agree on it.
	HashKey *bool `json:"hash_key,omitempty"`

	// Where the key, or a placeholder in it, is an IPv4 address, how many of
	// its bits count: addresses of one network then share the quota. 1 to 32.
	// Default: all.
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`

	// The same for IPv6, where one client often has a whole /64 to choose
	// from. 1 to 128. Default: all.
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`
}

const (
	wantIPv4Bits = "a whole number of bits from 1 to 32"
	wantIPv6Bits = "a whole number of bits from 1 to 128"
	wantOwnRow   = "another name: an earlier limit of this handler counts under it in the same table, " +
		"where the two keys could be the same"
)

// isSet reports whether the rule says anything: a handler's own may be left
// out where it has zones.
func (r *Rule) isSet() bool { return *r != Rule{} }

// compile checks the rule and makes a zone of it. Errors are
// *ratelimit.FieldError, with the names of the Caddyfile's subdirectives.
func (r *Rule) compile() (*zone, error) {
	config := edge.Config{
		Prefix: r.Prefix, Algorithm: r.Algorithm, Limit: r.Limit,
		Durable: r.Durable, SynchronousCommit: r.SynchronousCommit,
	}
	if r.Burst != 0 {
		config.Burst = strconv.FormatInt(r.Burst, 10)
	}
	limit, err := edge.ParseLimit(config)
	if err != nil {
		return nil, err
	}
	cost, err := edge.ParseCost(r.Cost)
	if err != nil {
		return nil, err
	}
	if err := checkBits("ipv4_prefix", r.IPv4Prefix, 32, wantIPv4Bits); err != nil {
		return nil, err
	}
	if err := checkBits("ipv6_prefix", r.IPv6Prefix, 128, wantIPv6Bits); err != nil {
		return nil, err
	}
	z := &zone{limit: limit, key: newKey(r.Key), cost: cost, costText: expandShorthands(r.Cost)}
	z.key.ipv4, z.key.ipv6 = r.IPv4Prefix, r.IPv6Prefix
	if z.key.fixed() {
		z.key.text = z.key.mask(z.key.text)
	}
	z.secret = z.key.holdsCredential()
	if r.HashKey != nil {
		z.secret = *r.HashKey
	}
	return z, nil
}

// checkBits checks the length of a network's prefix; 0 is left out.
func checkBits(field string, bits, most int, want string) error {
	if bits < 0 || bits > most {
		return &ratelimit.FieldError{Field: field, Value: strconv.Itoa(bits), Want: want}
	}
	return nil
}

// checkRows makes sure that no two hits of one request can meet in a row. They
// can where prefix and table are the same, unless both keys are fixed and
// differ: what a placeholder gives is often for the client to choose.
func checkRows(zones []*zone) (at int, err error) {
	for i, z := range zones {
		for _, before := range zones[:i] {
			if z.limit.Prefix != before.limit.Prefix || z.limit.Durable != before.limit.Durable {
				continue
			}
			if !z.key.fixed() || !before.key.fixed() || z.key.text == before.key.text {
				return i, &ratelimit.FieldError{Field: "prefix", Value: z.limit.Prefix, Want: wantOwnRow}
			}
		}
	}
	return 0, nil
}

// fieldOf is the name of the field that an error is about, or "".
func fieldOf(err error) string {
	var field *ratelimit.FieldError
	if errors.As(err, &field) {
		return field.Field
	}
	return ""
}
