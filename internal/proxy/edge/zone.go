package edge

import (
	"net/http"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Text is text with placeholders, as a proxy reads them. It does not change.
type Text interface {
	// Of is the text for a request. Fixed text needs no request: q may be nil.
	Of(q *Request) string
	// Key is Of for the key of a limit: a value has one form, and of an address v4 or v6 bits count.
	Key(q *Request, v4, v6 int) string
	// Fixed reports whether there is no placeholder.
	Fixed() bool
	// Secret reports whether a placeholder gives a credential.
	Secret() bool
	// Shares reports whether a placeholder is one of another text.
	Shares(other Text) bool
	// Parts are what the placeholders are of.
	Parts() Parts
}

// Parts are parts of a request.
type Parts struct {
	User, Host, Path bool
	Headers          []string // canonical
	Header           string   // that of a text that is the placeholder of one header, and nothing else
}

// ParseText reads text with placeholders. An error is a *ratelimit.FieldError and names the field.
type ParseText func(field, text string) (Text, error)

// Zone is a limit of a configuration, compiled. Handlers have one or several. It does not change after Site.Prepare.
type Zone struct {
	ConfiguredLimit

	Configured Values
	KeyText    string // as it is configured, or the default
	Key        Text   // with alternatives, it is for the configuration alone
	Secret     bool   // the key is stored as a digest

	// Match reports whether the limit is for a request; nil is for all requests.
	Match func(r *http.Request) (bool, error)

	// Index is that in Site.Zones. Source and Name are for a proxy that makes frequent keys without Key.
	Index  int
	Source uint8
	Name   string

	// Hit is what a request is charged, without what depends on the request.
	Hit ratelimit.Hit

	alternatives []alternative // of the key; nil without
	cost         Text          // nil for a fixed cost
	audit        history.Audit
	empty        int32 // 1 once the log has a warning that the key was empty; atomic
}

// alternative is one of several keys, of which the first that is not empty is that of a request.
type alternative struct {
	text   Text
	secret bool
}

// defaultKey is the key of a limit without one.
const defaultKey = "{client_ip}"

// NewZone reads and checks a limit. Errors are *ratelimit.FieldError, with the names of LimitTable.
func NewZone(from Values, parse ParseText) (*Zone, error) {
	read, err := ReadLimit(from)
	if err != nil {
		return nil, err
	}
	z := &Zone{ConfiguredLimit: *read, Configured: from, KeyText: from["key"]}
	if z.KeyText == "" {
		z.KeyText = defaultKey
	}
	if z.Key, err = parse("key", z.KeyText); err != nil {
		return nil, err
	}
	z.Secret = z.isSecret(z.Key)
	for _, one := range z.Alternatives {
		text, err := parse("key", one)
		if err != nil {
			return nil, err
		}
		z.alternatives = append(z.alternatives, alternative{text, z.isSecret(text)})
	}
	if z.Cost == 0 {
		if z.cost, err = parse("cost", from["cost"]); err != nil {
			return nil, err
		}
	}
	z.Hit = ratelimit.Hit{Limit: &z.Limit, Cost: z.Cost, Secret: z.Secret, Apart: z.Mode == policy.Shadow}
	return z, nil
}

// isSecret reports whether keys of a text are stored as digests.
func (z *Zone) isSecret(text Text) bool {
	if z.HashKey != nil {
		return *z.HashKey
	}
	return text.Secret()
}

// Plain reports whether the key is one text without alternatives.
func (z *Zone) Plain() bool { return z.alternatives == nil }

// SetKey sets the key of a request's hit.
func SetKey(z *Zone, q *Request, hit *ratelimit.Hit) {
	if z.alternatives == nil {
		hit.Key = z.Key.Key(q, z.IPv4, z.IPv6)
		return
	}
	hit.Key = ""
	hit.Secret = false // an alternative that is a secret is a digest
	for i := range z.alternatives {
		one := &z.alternatives[i]
		if text := one.text.Key(q, z.IPv4, z.IPv6); text != "" {
			hit.Key = policy.AlternativeKey(i+1, text, one.secret)
			return
		}
	}
}

// Vary sets the cost of a request's hit if it depends on the request.
func Vary(z *Zone, q *Request, hit *ratelimit.Hit) {
	if z.cost != nil {
		SetCost(hit, z.cost.Of(q))
	}
}

// WarnEmpty warns once that the key of a request is empty: all such requests share one quota.
func WarnEmpty(s *Site, z *Zone) {
	if s.Log != nil && atomic.CompareAndSwapInt32(&z.empty, 0, 1) {
		s.Log(Line{Level: Warn, Text: "the key of a request is empty: all such requests share one quota", Prefix: z.Limit.Prefix})
	}
}
