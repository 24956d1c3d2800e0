package serve_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"

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
func requestWith(t *testing.T, lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, line := range lines {
		name, value, found := strings.Cut(line+" ", ": ")
		value = strings.TrimSuffix(value, " ")
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		if !found {
			t.Fatalf("the line %q has no colon", line)
		}
		r.Header[name] = append(r.Header[name], value)
	}
	return r
}
