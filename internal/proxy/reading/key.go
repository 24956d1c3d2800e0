package reading

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// ParseText parses text with placeholders. An error is a *ratelimit.FieldError for the field.
type ParseText func(field, text string) (*Text, error)

// Key is the compiled key of a limit.
type Key struct {
	Text       *Text  // requests use alternatives instead, if there are any
	Secret     bool   // the keys are stored as digests; false with alternatives, which are digests if secret
	Fixed      string // the key if it is the same for all requests, else ""
	Header     string // the header that contains the key, or ""
	Connection bool   // the key is the address of the connection
	Frequent   bool   // FrequentKey finds the keys of most requests
	IPv4, IPv6 int    // the leading bits of an address that belong to the key

	hash         *bool         // the setting hash_key, or nil
	alternatives []alternative // nil if the key has none
	number       int           // of the first alternative that is the policy's API key, or 0
}

// alternative is one of several keys. The first one that is not empty is the key of a request.
type alternative struct {
	text   *Text
	secret bool
	number int // see policy.AlternativeKey
}

// NewKey parses the text of a limit's key.
func NewKey(l *settings.ConfiguredLimit, text string, parse ParseText) (*Key, error) {
	whole, err := parse("key", text)
	if err != nil {
		return nil, err
	}
	k := &Key{Text: whole, IPv4: l.IPv4, IPv6: l.IPv6, hash: l.HashKey}
	for i, one := range l.Alternatives {
		text, err := parse("key", one)
		if err != nil {
			return nil, err
		}
		k.alternatives = append(k.alternatives, alternative{text, k.isSecret(text), i + 1})
	}
	if k.alternatives != nil {
		return k, nil
	}
	k.Secret = k.isSecret(whole)
	if !policy.HasScheme(whole.Header) { // FrequentKey does not normalize credentials
		k.Header = whole.Header
	}
	k.Connection = whole.Connection
	if whole.Fixed {
		k.Fixed = whole.Values(nil)[0]
	}
	k.Frequent = k.Fixed != "" || k.Header != "" || k.Connection
	return k, nil
}

// isSecret reports whether keys from a text are stored as digests.
func (k *Key) isSecret(text *Text) bool {
	if k.hash != nil {
		return *k.hash
	}
	return text.Secret
}

// AddAPIKey says before the first request that one of the texts of the policy's API key is key. Its values in
// keys of k then have the form of an API key, and are secret unless hash_key is set.
func (k *Key) AddAPIKey(key *Text) {
	if k.alternatives == nil && k.Text.shareKeys(key) {
		k.Secret = k.Secret || k.hash == nil
		k.Header = ""
		k.Frequent = false
	}
	for i := range k.alternatives {
		one := &k.alternatives[i]
		if one.text.shareKeys(key) {
			one.secret = one.secret || k.hash == nil
			if len(one.text.pieces) == 1 { // an API key has one number, whichever header brought it
				if k.number == 0 {
					k.number = one.number
				}
				one.number = k.number
			}
		}
	}
}

// Differ reports whether two keys are fixed and differ. A client often chooses the value of a placeholder.
func Differ(a, b *Key) bool { return a.Fixed != "" && b.Fixed != "" && a.Fixed != b.Fixed }

// FrequentKey returns the key of a request if the key is fixed, a header that occurs once, or the address of
// the connection. For any other key, and for a value with spaces, which servers trim, it returns "".
// FrequentKey takes fewer steps than Keys.
func FrequentKey(k *Key, r *http.Request) string {
	key := k.Fixed
	if key != "" {
		return key
	}
	if k.Connection {
		key = Connection(r)
	} else {
		values := r.Header[k.Header] // no header has the name ""
		if len(values) != 1 || strings.ContainsAny(values[0], " \t") ||
			policy.OtherSpelling(r.Header, k.Header) {
			return ""
		}
		key = values[0]
	}
	if k.IPv4 < allIPv4 || strings.IndexByte(key, ':') >= 0 { // as in Network
		if strings.HasPrefix(key, Reserved) {
			return ""
		}
		return Network(key, k.IPv4, k.IPv6)
	}
	return key
}

const (
	// Reserved begins the keys of rows that no value of a client has: such a value is stored as a digest.
	Reserved = "request:"
	// SeveralKey is the key of requests with more than policy.MaxValues keys.
	SeveralKey = Reserved + "several"
)

// PreflightKey returns the key of a CORS preflight without a key, which is its client. A browser cannot send
// a key in it, so all preflights would share one quota.
func PreflightKey(q *Input) string { return Reserved + "preflight " + Client(q) }

// Keys returns the keys of a request, of which "" stands for a missing value, and nil if there are more than
// policy.MaxValues. A server may read any of several values, so that each is charged. If one of them is
// empty, the next alternative counts, too.
func Keys(k *Key, q *Input) []string {
	var keys []string
	if k.alternatives == nil {
		keys = textValues(k.Text, q, k.IPv4, k.IPv6)
		if len(keys) > policy.MaxValues {
			return nil
		}
		return keys
	}
	lacks := true
	for i := 0; i < len(k.alternatives) && lacks; i++ {
		one := &k.alternatives[i]
		values := textValues(one.text, q, k.IPv4, k.IPv6)
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

// APIKey returns the API key of a request: the first that the alternatives hold, without another scheme than
// Bearer. several reports that an alternative holds several keys.
func APIKey(alternatives []*Text, q *Input) (key string, several bool) {
	for _, text := range alternatives {
		values := text.Values(q)
		if values == nil {
			return "", true
		}
		var own []string // without other schemes
		for _, value := range values {
			if !policy.HasScheme(text.Header) || !strings.ContainsAny(value, " \t") ||
				strings.HasPrefix(value, "bearer ") {
				own = append(own, value)
			}
		}
		key = ""
		for _, value := range policy.KeyValues(own, "") {
			if value != "" && key != "" {
				return "", true
			}
			key += value
		}
		if key != "" {
			return key, false
		}
	}
	return "", false
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

// CostOf returns the cost of a request, which is the largest of its values.
func CostOf(t *Text, q *Input) int64 {
	values := t.Values(q)
	if values == nil {
		return maxCost
	}
	return ParseCost(strings.Join(values, ","))
}
