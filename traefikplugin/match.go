package traefikplugin

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Match selects the requests of a limit, as the matchers of Caddy do there. A request must match at least
// one element of every list that is not empty, as in a rule.
type Match struct {
	// Paths lists paths such as /login or /api/*. A * stands for one segment, or at the end of a path for any
	// number of segments.
	Paths []string `json:"paths,omitempty"`

	// Methods lists methods such as GET.
	Methods []string `json:"methods,omitempty"`

	// Hosts lists hosts such as example.com or *.example.com.
	Hosts []string `json:"hosts,omitempty"`

	// Headers lists conditions on headers: "X-Plan" for a header that is not empty, and "X-Plan: gold" for a
	// header with this value.
	Headers []string `json:"headers,omitempty"`

	// Other holds settings that do not exist, which are errors.
	Other Settings `json:"-" mapstructure:",remain"`
}

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
		return nil, option.Invalid("match", "",
			"one or more of paths, methods, hosts and headers, or left out for all requests")
	}
	for _, text := range m.Methods {
		if !methodName.MatchString(text) {
			return nil, option.Invalid("match.methods", text, "methods such as GET")
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
		if !option.HeaderName(name) || hasValue && value == "" {
			return nil, option.Invalid("match.headers", text,
				"the name of a header, or a name, a colon and a value, as in X-Plan: gold")
		}
		name = http.CanonicalHeaderKey(name)
		if name == "Host" {
			return nil, option.Invalid("match.headers", text, "another header: match.hosts matches the host")
		}
		if hasValue { // in the form of a request's values
			value = policy.HeaderValues(http.Header{name: {value}}, name)[0]
		}
		compiled.names = append(compiled.names, name)
		compiled.values = append(compiled.values, value)
	}
	return compiled, nil
}

// Matches reports whether the limit applies to a request.
func (m *Matcher) Matches(r *http.Request) bool {
	meets := len(m.names) == 0 // one of the conditions on headers
	for i, name := range m.names {
		for _, value := range policy.HeaderValues(r.Header, name) {
			meets = meets || value != "" && (m.values[i] == "" || value == m.values[i])
		}
	}
	return meets && m.conditions.Match(r.Method, r.Host, r.URL.EscapedPath())
}
