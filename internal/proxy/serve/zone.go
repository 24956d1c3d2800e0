package serve

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ParseText parses text with placeholders. An error is a *ratelimit.FieldError for the field.
type ParseText func(field, text string) (*Text, error)

// Zone is a compiled limit of a configuration. It does not change after Site.Prepare.
type Zone struct {
	settings.ConfiguredLimit

	Configured settings.Values
	Key        *Text // requests use alternatives instead, if there are any

	// Match reports whether the limit applies to a request. Nil applies to all requests.
	Match func(r *http.Request) (bool, error)
	// Endpoint lists the paths of Match for the history; "" without paths.
	Endpoint string

	// Hit is the template for the hits of requests.
	Hit ratelimit.Hit

	Frequent bool   // FrequentKey finds the keys of most requests
	Header   string // the header that contains the key, or ""

	fixed      string // the key if it is the same for all requests, else ""
	connection bool   // the key is the address of the connection

	alternatives []alternative // nil if the key has none
	keyNumber    int           // the number of the first alternative that is the policy's API key, or 0
	cost         *Text         // nil for a fixed cost
	audit        option.Audit
	empty        int32 // 1 once the log has a warning that the key was empty; atomic
}

// alternative is one of several keys. The first one that is not empty is the key of a request.
type alternative struct {
	text   *Text
	secret bool
	number int // see policy.AlternativeKey
}

// defaultKey is the key of a limit without a configured key.
const defaultKey = "{client_ip}"

// NewZone parses the settings of a limit, and keeps them with their defaults. Errors are
// *ratelimit.FieldError with the names of settings.LimitTable.
func NewZone(configured, defaults settings.Values, parse ParseText) (*Zone, error) {
	values := settings.Values{"key": defaultKey}
	for _, from := range []settings.Values{defaults, configured} {
		for name, value := range from {
			if value != "" {
				values[name] = value
			}
		}
	}
	read, err := settings.ReadLimit(values)
	if err != nil {
		return nil, err
	}
	z := &Zone{ConfiguredLimit: *read, Configured: values}
	if z.Key, err = parse("key", values["key"]); err != nil {
		return nil, err
	}
	for i, one := range z.Alternatives {
		text, err := parse("key", one)
		if err != nil {
			return nil, err
		}
		z.alternatives = append(z.alternatives, alternative{text, z.isSecret(text), i + 1})
	}
	if z.Cost == 0 {
		if z.cost, err = parse("cost", values["cost"]); err != nil {
			return nil, err
		}
	}
	if z.alternatives == nil {
		if !policy.HasScheme(z.Key.Header) { // FrequentKey does not normalize credentials
			z.Header = z.Key.Header
		}
		z.connection = z.Key.Connection
		if z.Key.Fixed {
			z.fixed = z.Key.Values(nil)[0]
		}
		z.Frequent = z.fixed != "" || z.Header != "" || z.connection
	}
	independent := z.Mode == option.Shadow
	z.Hit = ratelimit.Hit{Limit: &z.Limit, Cost: z.Cost, Secret: z.isSecret(z.Key), Independent: independent}
	return z, nil
}

// auditOf returns the audit setting of a zone, which Compile has validated. own is that of the handler.
func (z *Zone) auditOf(own option.Audit) option.Audit {
	audit, _ := option.ParseAudit(z.Configured["audit"], own)
	return audit
}

// isSecret reports whether keys from a text are stored as digests.
func (z *Zone) isSecret(text *Text) bool {
	if z.HashKey != nil {
		return *z.HashKey
	}
	return text.Secret
}

// addKey tells z that one of the texts of the policy's API key is key. Its values in keys of z then have the
// form of an API key, and are secret unless hash_key is set.
func (z *Zone) addKey(key *Text) {
	if share(z.Key, key) {
		z.Key.shareKeys(key)
		z.Hit.Secret = z.Hit.Secret || z.HashKey == nil
		if z.alternatives == nil {
			z.Header = ""
			z.Frequent = false
		}
	}
	for i := range z.alternatives {
		one := &z.alternatives[i]
		if share(one.text, key) {
			one.text.shareKeys(key)
			one.secret = one.secret || z.HashKey == nil
			if len(one.text.pieces) == 1 { // an API key has one number, whichever header brought it
				z.keyNumber = firstNumber(z.keyNumber, one.number)
				one.number = z.keyNumber
			}
		}
	}
}

// firstNumber returns first, or number if first is 0.
func firstNumber(first, number int) int {
	if first == 0 {
		return number
	}
	return first
}

// FrequentKey returns the key of a request if the key is fixed, a header that occurs once, or the address of
// the connection. For any other key, and for a value with spaces, which servers trim, it returns "".
// FrequentKey takes fewer steps than setZoneKeys.
func FrequentKey(z *Zone, r *http.Request) string {
	key := z.fixed
	if key != "" {
		return key
	}
	if z.connection {
		key = Connection(r)
	} else {
		values := r.Header[z.Header] // no header has the name ""
		if len(values) != 1 || strings.ContainsAny(values[0], " \t") ||
			policy.OtherSpelling(r.Header, z.Header) {
			return ""
		}
		key = values[0]
	}
	if z.IPv4 < allIPv4 || strings.IndexByte(key, ':') >= 0 { // as in Network
		if strings.HasPrefix(key, reserved) {
			return ""
		}
		return Network(key, z.IPv4, z.IPv6)
	}
	return key
}

const allIPv4 = 32

// Network returns the network of an address, such as "2001:db8::/64": the first v4 bits of an IPv4 address,
// or the first v6 bits of an IPv6 address. If all bits count, it returns the address without a length. It
// normalizes addresses: IPv6 in lower case and without a zone, and IPv4-mapped addresses and those of NAT64
// as IPv4. Network returns other text unchanged.
func Network(text string, v4, v6 int) string {
	if v4 >= allIPv4 && strings.IndexByte(text, ':') < 0 {
		return text
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	address = policy.ClientOf(address.Unmap().WithZone(""))
	bits := v4
	if address.Is6() {
		bits = v6
	}
	if bits >= address.BitLen() {
		return address.String()
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return text
	}
	return prefix.String()
}

// Connection returns the address of a request's connection, or policy.UnknownAddress, as for a Unix socket.
func Connection(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil {
		return host
	}
	if _, err = netip.ParseAddr(r.RemoteAddr); err == nil {
		return r.RemoteAddr
	}
	return policy.UnknownAddress
}

// warnOfUnknown logs a warning the first time that a client's address is unknown.
func warnOfUnknown(s *Site) {
	if s != nil && s.Log != nil && atomic.CompareAndSwapInt32(&s.unknown, 0, 1) {
		s.Log(host.Line{Level: host.Warn, Text: "the address of a client is unknown: all such clients are " +
			"one client, without bans and exemptions (behind a Unix socket, trust the proxy in front)"})
	}
}

const (
	// reserved begins the keys of rows that no value of a client has: such a value is stored as a digest.
	reserved = "request:"
	// severalKey is the key of requests with more than policy.MaxValues keys.
	severalKey = reserved + "several"
)

// zoneKeys returns the keys of a request, of which "" stands for a missing value, and nil if there are more
// than policy.MaxValues. A server may read any of several values, so that each is charged. If one of them is
// empty, the next alternative counts, too.
func zoneKeys(z *Zone, q *Request) []string {
	var keys []string
	if z.alternatives == nil {
		keys = textValues(z.Key, q, z.IPv4, z.IPv6)
		if len(keys) > policy.MaxValues {
			return nil
		}
		return keys
	}
	lacks := true
	for i := 0; i < len(z.alternatives) && lacks; i++ {
		one := &z.alternatives[i]
		values := textValues(one.text, q, z.IPv4, z.IPv6)
		lacks = false
		for _, text := range values {
			if text == "" {
				lacks = true
			} else {
				keys = append(keys, policy.AlternativeKey(one.number, text, one.secret))
			}
		}
		if values == nil {
			return nil
		}
	}
	if lacks {
		keys = append(keys, "")
	}
	if keys = policy.Distinct(keys); len(keys) > policy.MaxValues {
		return nil
	}
	return keys
}

// preflightKey returns the key of a CORS preflight without a key, which is its client. A browser cannot send
// a key in it, so all preflights would share one quota.
func preflightKey(q *Request) string { return reserved + "preflight " + clientOf(q) }

// clientOf returns the address of the client of a request, or its /64 if it is IPv6.
func clientOf(q *Request) string {
	if find := q.Site.Address; find != nil {
		if address, _ := find(q.HTTP); address.IsValid() {
			return Network(address.String(), allIPv4, 64)
		}
	}
	return policy.UnknownAddress
}

// requiresKey reports whether a zone counts only the requests that have its key.
func requiresKey(z *Zone) bool {
	return z.WithoutKey == option.WithoutSkip || z.WithoutKey == option.WithoutRefuse
}

// withoutEmpty returns the texts of a list that are not empty.
func withoutEmpty(list []string) []string {
	var texts []string
	for _, text := range list {
		if text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// withoutKey reports whether a zone, which requires a key, does not apply to a request that lacks the key, or
// refuses it.
func withoutKey(z *Zone, q *Request) (skips, refuses bool) {
	if keys := zoneKeys(z, q); keys == nil || len(withoutEmpty(keys)) > 0 {
		return false, false
	}
	if z.WithoutKey == option.WithoutSkip {
		return true, false
	}
	return false, z.Mode == option.Enforce && !policy.IsPreflight(q.HTTP.Method, q.HTTP.Header)
}

// setZoneKeys sets the key of the hit i of a request, and appends further hits if the request has several
// keys. The first time that a key is empty, it logs a warning, because all such requests share one quota.
func setZoneKeys(z *Zone, q *Request, i int, hits []ratelimit.Hit) []ratelimit.Hit {
	keys := zoneKeys(z, q)
	if len(keys) > 1 && requiresKey(z) {
		keys = withoutEmpty(keys)
	}
	if keys == nil {
		hits[i].Key = severalKey
		hits[i].Secret = false
		return hits
	}
	for n, key := range keys {
		at := i
		if n > 0 {
			at = len(hits)
			hits = append(hits, hits[i])
			q.Terms = append(q.Terms, q.Terms[i])
		}
		hits[at].Key = key
		// AlternativeKey replaces a secret by its digest. hits[i] may have the form of an earlier key.
		hits[at].Secret = z.alternatives == nil && (z.Hit.Secret || strings.HasPrefix(key, reserved))
		if key == "" && policy.IsPreflight(q.HTTP.Method, q.HTTP.Header) {
			hits[at].Key = preflightKey(q)
			hits[at].Secret = false
			continue
		}
		if log := q.Site.Log; key == "" && log != nil && atomic.CompareAndSwapInt32(&z.empty, 0, 1) {
			log(host.Line{Level: host.Warn, Prefix: z.Limit.Prefix,
				Text: "the key of a request is empty: all such requests share one quota"})
		}
	}
	return hits
}

// maxCost exceeds any quota.
const maxCost = 1 << 62

// ParseCost parses the cost of a request. Of several numbers, separated by commas, the largest counts. 0 and
// text other than a whole number count as 1, because a client that chooses the text must not get a refund or
// a free pass.
func ParseCost(text string) int64 {
	largest := uint64(1)
	for _, one := range strings.Split(text, ",") {
		cost, _ := strconv.ParseUint(strings.TrimSpace(one), 10, 64) // 0, or for a huge number its maximum
		if cost > largest {
			largest = cost
		}
	}
	if largest > maxCost {
		return maxCost
	}
	return int64(largest)
}

// costOf returns the cost of a request from its values, of which the largest counts.
func costOf(z *Zone, q *Request) int64 {
	values := z.cost.Values(q)
	if values == nil {
		return maxCost
	}
	return ParseCost(strings.Join(values, ","))
}

// checkRows returns an error and the index of the second limit if two hits of one request could be on the
// same row, which ratelimit.Store does not allow. Limits with the same prefix and table could share a row
// unless both keys are fixed and differ, since a client often chooses the value of a placeholder.
func checkRows(zones []*Zone) (at int, err error) {
	for i, z := range zones {
		for _, earlier := range zones[:i] {
			if z.Limit.Prefix == earlier.Limit.Prefix && z.Limit.Durable == earlier.Limit.Durable &&
				!differ(z, earlier) {
				want := "another name: an earlier limit on the same request counts under it in the same " +
					"table, where the two keys could be the same"
				return i, &ratelimit.FieldError{Field: "prefix", Value: z.Limit.Prefix, Want: want}
			}
		}
	}
	return 0, nil
}

// differ reports whether the keys of two limits are fixed and differ.
func differ(a, b *Zone) bool { return a.fixed != "" && b.fixed != "" && a.fixed != b.fixed }
