package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// newKeySite returns a site with a zone of each of keys. apiKey is the policy's api_key, or "".
func newKeySite(t *testing.T, apiKey string, keys ...string) *serve.Site {
	t.Helper()
	c := serve.Configuration{}
	for i, key := range keys {
		c.Zones = append(c.Zones, settings.Values{"prefix": string(rune('a' + i)), "limit": "9 1h",
			"key": key, "hash_key": "off"})
	}
	if apiKey != "" {
		c.Policy = settings.Values{"api_key": apiKey}
	}
	c.Parse = func(_, configured string) (*serve.Text, error) {
		text := &serve.Text{}
		for _, part := range strings.SplitAfter(configured, "}") {
			fixed, name, _ := strings.Cut(strings.TrimSuffix(part, "}"), "{")
			text.AddText(fixed)
			if name != "" && !text.Add(name) {
				t.Fatalf("{%s} is no placeholder", name)
			}
		}
		return text, nil
	}
	site, _, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	site.Address = func(r *http.Request) (netip.Addr, bool) {
		address, _ := netip.ParseAddr(serve.Connection(r))
		return address, false
	}
	site.Prepare()
	return site
}

// keysOf returns the keys to which the zones of a site charge a request with the accepted API key K, or "".
func keysOf(site *serve.Site, r *http.Request, accepted string) string {
	q := &serve.Request{Site: site, HTTP: r, Limits: site.LimitsOfAll()}
	if accepted != "" {
		q.Asked, q.Key, q.Verdict.KeyID = true, accepted, 7
	}
	if site.Policy != nil {
		site.Policy = nil
		site.Prepare()
		q.Limits = site.LimitsOfAll()
	}
	serve.Fill([]*serve.Request{q})
	var keys []string
	for i := range q.Hits {
		keys = append(keys, q.Hits[i].StoredKey())
	}
	return strings.Join(keys, ", ")
}

// requestWith returns a request with lines of headers such as "X: a".
func requestWith(lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header[name] = append(r.Header[name], value)
	}
	return r
}

// A request is charged to each of several values of its key, up to four; more share one row. No client is
// charged to that row by a value of its own.
func TestEachValueOfKeyIsCharged(t *testing.T) {
	for _, test := range []struct {
		key   string
		lines []string
		want  string
	}{
		{"{header.X}", []string{"X: a"}, "a"},
		{"{header.X}", []string{"X: a", "X: a"}, "a"},
		{"{header.X}", []string{"X: a", "X: b"}, "a, b"},
		{"{header.X}", []string{"X: a", "x: b"}, "a, b"},
		{"{header.X-User}", []string{"x-user: b"}, "b"},
		{"{header.X-User}", []string{"X-User: a", "X-USER: b"}, "a, b"},
		{"{header.X-User}", []string{"X-User: a", "X_User: b"}, "a, b"},
		{"{header.X-User}", []string{"X-User:  a\t"}, "a"},
		{"{header.X-Api-Key}", []string{"X-Api-Key: K", "X-Api-Key: bearer  K"}, "K"},
		{"{header.X}", []string{"X: 1", "X: 2", "X: 3", "X: 4"}, "1, 2, 3, 4"},
		{"{header.X}", []string{"X: 1", "X: 2", "X: 3", "X: 4", "X: 5"}, "request:several"},
		{"{header.X} | {client_ip}", []string{"X: 1", "X: 2", "X: 3", "X: 4", "X: 5"}, "request:several"},
		{"{header.X}", []string{"X: 2001:db8::1", "X: 2001:DB8::2"}, "2001:db8::/64"},
		{"{header.X}-{header.Y}", []string{"X: a", "X: b", "Y: c"}, "a-c, b-c"},
		{"{header.X} | {client_ip}", []string{"X: a", "X: b"}, "1|a, 1|b"},
		{"{header.X} | {client_ip}", []string{"X: a", "X: "}, "1|a, 2|192.0.2.1"},
		{"{header.X} | {header.Y}", []string{"X: ", "Y: b"}, "2|b"},
		{"{header.X}", []string{"X: ", "X: a"}, ", a"},
		{"{cookie.sid}", []string{"Cookie: sid=1; Sid=3; sid=%32", "Cookie: sid=2"}, "1, 2"},
		{"{remote_ip}", nil, "192.0.2.1"},
	} {
		if got := keysOf(newKeySite(t, "", test.key), requestWith(test.lines...), ""); got != test.want {
			t.Errorf("%s of %q: got %s, want %s", test.key, test.lines, got, test.want)
		}
	}
	// The digest of one value leaves the others as they are.
	got := keysOf(newKeySite(t, "", "{header.X}"), requestWith("X: request:1", "X: S"), "")
	if !strings.HasSuffix(got, ", S") {
		t.Errorf("a reserved value and S: got %s, want a digest and S", got)
	}
	for _, line := range []string{"X: request:several", "X: request:x"} {
		got := keysOf(newKeySite(t, "", "{header.X}"), requestWith(line), "")
		if !strings.HasPrefix(got, "sha256:") {
			t.Errorf("%s: got %s, want a digest", line, got)
		}
	}
}

// A key with the policy's API key has one form: the key that was accepted, whichever header brought it.
func TestKeyWithAPIKeyHasOneForm(t *testing.T) {
	const both = "{header.Authorization} | {header.X-Api-Key}"
	for _, test := range []struct {
		key      string
		accepted string
		lines    []string
		want     string
	}{
		{"{header.Authorization}", "K", []string{"Authorization: K"}, "K"},
		{"{header.Authorization}", "K", []string{"Authorization: bearer  K"}, "K"},
		{"{header.Authorization}", "K", []string{"X-Api-Key: K"}, "K"},
		{"{header.X-Api-Key}", "K", []string{"Authorization: Bearer K"}, "K"},
		{"{header.X-Api-Key}", "K", []string{"Authorization: Bearer K", "X-Api-Key: 17"}, "K, 17"},
		{both, "K", []string{"X-Api-Key: K"}, "1|K"},
		{both, "K", []string{"Authorization: Bearer K"}, "1|K"},
		{both + " | {client_ip}", "", nil, "3|192.0.2.1"},
		{"{header.Authorization}", "", []string{"Authorization: BEARER K"}, "K"},
		{"{header.Authorization}", "", []string{"Authorization: Basic YW5u"}, "basic YW5u"},
		{"{header.X-Other}", "K", []string{"X-Other: Bearer K"}, "Bearer K"},
	} {
		got := keysOf(newKeySite(t, both, test.key), requestWith(test.lines...), test.accepted)
		if got != test.want {
			t.Errorf("%s of %q: got %s, want %s", test.key, test.lines, got, test.want)
		}
	}
}

// without_key decides what happens to requests without a key. A preflight of a browser, which cannot send a
// key, counts by its client instead, in rows of their own.
func TestRequestsWithoutKey(t *testing.T) {
	preflight := []string{"Origin: https://a.test", "Access-Control-Request-Method: GET"}
	for _, test := range []struct {
		without, mode, method string
		lines                 []string
		want                  string
	}{
		{"", "", "GET", nil, "[]"},
		{"share", "", "GET", nil, "[]"},
		{"share", "", "OPTIONS", preflight, "[request:preflight 192.0.2.1]"},
		{"share", "", "GET", preflight, "[]"},
		{"share", "", "OPTIONS", preflight[:1], "[]"},
		{"share", "", "OPTIONS", append([]string{"X: a"}, preflight...), "[a]"},
		{"skip", "", "GET", nil, "passes"},
		{"skip", "", "OPTIONS", preflight, "passes"},
		{"skip", "", "GET", []string{"X: "}, "passes"},
		{"skip", "", "GET", []string{"X: ", "X: a"}, "[a]"},
		{"refuse", "", "GET", nil, "401 no_key"},
		{"refuse", "", "GET", []string{"X: "}, "401 no_key"},
		{"refuse", "", "GET", []string{"X: a"}, "[a]"},
		{"refuse", "", "OPTIONS", preflight, "[request:preflight 192.0.2.1]"},
		{"refuse", "", "OPTIONS", nil, "401 no_key"},
		{"refuse", "shadow", "GET", nil, "[]"},
		{"refuse", "off", "GET", nil, "passes"},
	} {
		site := newKeySite(t, "", "{header.X}")
		site.Zones[0].WithoutKey = option.Without(test.without)
		if test.mode != "" {
			site.Zones[0].Mode = option.Mode(test.mode)
		}
		site.Prepare()
		r := requestWith(test.lines...)
		r.Method = test.method
		q := &serve.Request{Site: site, HTTP: r}
		waits, err := serve.Begin(q)
		if err != nil {
			t.Fatal(err)
		}
		got := "passes"
		if q.Outcome.Status != 0 {
			got = fmt.Sprint(q.Outcome.Status, " ", q.Outcome.Reason)
		} else if waits {
			serve.Fill([]*serve.Request{q})
			got = "[" + q.Hits[0].StoredKey() + "]"
		}
		if got != test.want {
			t.Errorf("%+v: got %s, want %s", test, got, test.want)
		}
	}
}
