package serve

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Match selects the requests of a limit in Traefik; Caddy has its own matchers. As in a rule, one element of
// each list that is set must match.
type Match struct {
	// Paths lists paths such as /login or /api/*, where * is a whole segment, or at the end the rest.
	Paths []string `json:"paths,omitempty"`

	// Methods lists methods such as GET.
	Methods []string `json:"methods,omitempty"`

	// Hosts lists hosts such as example.com or *.example.com.
	Hosts []string `json:"hosts,omitempty"`

	// Headers lists conditions on headers: a name for a header that is not empty, or a name, a colon and a
	// value.
	Headers []string `json:"headers,omitempty"`

	// Other holds unknown settings, which are errors.
	Other Given `json:"-" mapstructure:",remain"`
}

// Given holds settings from Traefik's providers: text, numbers and switches, by names in camel case or as in
// Caddy.
type Given = map[string]any

// Matcher is a compiled Match. It is immutable.
type Matcher struct {
	conditions *policy.Conditions
	names      []string // canonical names of headers
	values     []string // their values; "" matches any value that is not empty
}

var methodName = regexp.MustCompile(`^[A-Za-z-]+$`)

// Compile validates m and returns its Matcher.
func (m *Match) Compile() (*Matcher, error) {
	if len(m.Paths)+len(m.Methods)+len(m.Hosts)+len(m.Headers) == 0 {
		want := "given with paths, methods, hosts or headers, or left out for all requests"
		return nil, &ratelimit.FieldError{Field: "match", Want: want}
	}
	for _, text := range m.Methods {
		if !methodName.MatchString(text) {
			return nil, &ratelimit.FieldError{Field: "match.methods", Value: text,
				Want: "methods such as GET"}
		}
	}
	conditions, err := policy.NewConditions(m.Hosts, m.Paths, m.Methods)
	if wrong, ok := err.(*ratelimit.FieldError); ok {
		wrong.Field = "match." + wrong.Field
	}
	if err != nil {
		return nil, err
	}
	compiled := &Matcher{conditions: conditions}
	for _, text := range m.Headers {
		name, value, hasValue := strings.Cut(text, ":")
		value = strings.TrimSpace(value)
		if !settings.HeaderName(name) || hasValue && value == "" {
			want := "the name of a header, or a name, a colon and a value, as in X-Plan: gold"
			return nil, &ratelimit.FieldError{Field: "match.headers", Value: text, Want: want}
		}
		compiled.names = append(compiled.names, http.CanonicalHeaderKey(name))
		compiled.values = append(compiled.values, value)
	}
	return compiled, nil
}

// Matches reports whether the limit applies to a request.
func (m *Matcher) Matches(r *http.Request) bool {
	return m.hasHeader(r.Header) && m.conditions.Hold(r.Method, r.Host, r.URL.EscapedPath())
}

func (m *Matcher) hasHeader(h http.Header) bool {
	for i := range m.names {
		for _, value := range h[m.names[i]] {
			if value != "" && (m.values[i] == "" || value == m.values[i]) {
				return true
			}
		}
	}
	return len(m.names) == 0
}
