package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// kindSite compiles a configuration over a store in memory. Its zones with the prefix tokens match the path
// /v1.
func kindSite(t *testing.T, handler settings.Values, zones ...settings.Values) *serve.Site {
	t.Helper()
	c := &serve.Configuration{Handler: handler, Zones: zones, Parse: parse}
	s, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	if s.Store, err = memory.New(memory.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, z := range s.Zones {
		if z.Limit.Prefix == "tokens" {
			z.Match = func(r *http.Request) (bool, error) { return r.URL.Path == "/v1", nil }
		}
	}
	s.Timeout, s.Clock = time.Second, &respond.Clock{}
	s.Prepare()
	return s
}

// send sends a request, and returns the header and the body of its refusal.
func send(t *testing.T, s *serve.Site, method, path string, headers ...string) (http.Header, string) {
	t.Helper()
	w := httptest.NewRecorder()
	q := &serve.Request{Writer: w}
	q.HTTP = httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		q.HTTP.Header.Set(headers[i], headers[i+1])
	}
	if err := serve.Decide(s, q); err != nil {
		t.Fatal(err)
	}
	return w.Header(), q.Body
}

// Whichever limit refuses a request, its body has an object if a limit of tokens is for such requests, or a
// client of Anthropic sent it, unless the handler chooses.
func TestBodiesOfRefusalsFitTheirClients(t *testing.T) {
	zones := []settings.Values{{"prefix": "all", "key": "k", "limit": "1 1h", "algorithm": "fixed_window"},
		{"prefix": "tokens", "key": "k", "limit": "1000000 1h", "algorithm": "fixed_window",
			"unit": "tokens"}}
	for _, c := range []struct {
		errors, method, path, header string
		object                       bool
	}{
		{path: "/v1", object: true},
		{path: "/v1", method: http.MethodGet, object: true},
		{path: "/other"},
		{path: "/other", header: "anthropic-version", object: true},
		{path: "/other", errors: "object", object: true},
		{path: "/v1", header: "anthropic-version", errors: "text"},
	} {
		s := kindSite(t, settings.Values{"errors": c.errors}, zones...)
		if c.method == "" {
			c.method = http.MethodPost
		}
		headers := []string{}
		if c.header != "" {
			headers = []string{c.header, "2023-06-01"}
		}
		send(t, s, c.method, c.path, headers...)
		_, body := send(t, s, c.method, c.path, headers...)
		want := `{"error":"Too many requests","retryAfter":`
		if c.object {
			want = `{"type":"error","error":{"message":"Too many requests: limit all, retry in `
		}
		if !strings.HasPrefix(body, want) {
			t.Errorf("%+v: the body is %s, want %s …", c, body, want)
		}
	}
}

// The fields of limits of requests and of tokens stand beside each other. A limit with fields off has none,
// and a refusal by it has none of other limits.
func TestFieldsDescribeRequestsTokensAndNothingHidden(t *testing.T) {
	window := func(prefix, limit string, more ...string) settings.Values {
		v := settings.Values{"prefix": prefix, "key": "k", "limit": limit + " 1h",
			"algorithm": "fixed_window"}
		for i := 0; i < len(more); i += 2 {
			v[more[i]] = more[i+1]
		}
		return v
	}
	tokens := window("tokens", "9000", "unit", "tokens", "output", "4000")
	for _, c := range []struct {
		what    string
		handler settings.Values
		zones   []settings.Values
		want    []string // of each response: the limits and what remains of requests, and of tokens
	}{
		{"both", nil, []settings.Values{window("a", "7"), tokens}, []string{"7 6 9000 5000", "7 5 9000 1000",
			"7 4 9000 0", "7 4 9000 0"}},
		{"tokens alone", nil, []settings.Values{tokens}, []string{"  9000 5000"}},
		{"a hidden limit", nil, []settings.Values{window("a", "7"), window("b", "1", "fields", "off")},
			[]string{"7 6  ", "   "}},
		{"hidden tokens", nil, []settings.Values{window("a", "7"), window("tokens", "9000", "unit", "tokens",
			"fields", "off")}, []string{"7 6  "}},
		{"no fields", settings.Values{"fields": "off"}, []settings.Values{window("a", "1"), tokens},
			[]string{"   ", "   "}},
	} {
		s := kindSite(t, c.handler, c.zones...)
		for i, want := range c.want {
			h, _ := send(t, s, http.MethodPost, "/v1")
			got := strings.Join([]string{h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"),
				h.Get("X-RateLimit-Limit-Tokens"), h.Get("X-RateLimit-Remaining-Tokens")}, " ")
			check.Equal(t, fmt.Sprint(c.what, ", response ", i+1), got, want)
		}
	}
}
