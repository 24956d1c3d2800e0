package serve_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// The keys of a request. The lines of the transcript are:
//
//	key KEY ~ LINES              the keys of a request, for a key of a zone
//	accepted KEY ~ LINES         the same with the policy's API key K; unknown: without it
//	without HOW/MODE METHOD ~ …  what becomes of a request, for a setting without_key
//
// LINES are lines of headers, between " ~ ". A quoted value is a Go string.
func TestRequestIsChargedToEachKey(t *testing.T) {
	golden.ReplayLines(t, "testdata/keys.txt", func(t *testing.T, kind, text string) string {
		text, r := harness.InLines(t, text)
		switch kind {
		case "key":
			return keysOf(newKeySite(t, "", text), r, "")
		case "without":
			return withoutKey(t, r, text)
		}
		accepted := map[string]string{"accepted": "K"}[kind]
		return keysOf(newKeySite(t, "{header.Authorization} | {header.X-Api-Key}", text), r, accepted)
	})
}

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
	c.Parse = func(_, configured string) (*reading.Text, error) {
		text := &reading.Text{}
		for _, part := range strings.SplitAfter(configured, "}") {
			fixed, name, _ := strings.Cut(strings.TrimSuffix(part, "}"), "{")
			text.AddText(fixed)
			if name != "" && !text.Add(name) {
				t.Fatalf("{%s} is no placeholder", name)
			}
		}
		return text, nil
	}
	site, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	site.Clients.Address = func(r *http.Request) (netip.Addr, bool) {
		address, _ := netip.ParseAddr(reading.Connection(r))
		return address, false
	}
	site.Prepare()
	return site
}

// keysOf returns the keys to which the zones of a site charge a request with the accepted API key K, or "".
func keysOf(site *serve.Site, r *http.Request, accepted string) string {
	q := newRequest(site, r)
	q.Limits = site.LimitsOfAll()
	if accepted != "" {
		q.AcceptedKey = accepted
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

// newRequest returns a request to a site.
func newRequest(site *serve.Site, r *http.Request) *serve.Request {
	q := &serve.Request{Site: site}
	q.HTTP, q.Clients = r, site.Clients
	return q
}

// withoutKey returns what becomes of a request, for a setting without_key and a mode.
func withoutKey(t *testing.T, r *http.Request, text string) string {
	how, method, _ := strings.Cut(text, " ")
	how, mode, _ := strings.Cut(how, "/")
	site := newKeySite(t, "", "{header.X}")
	site.Zones[0].WithoutKey = option.Without(strings.TrimPrefix(how, "default"))
	if mode != "" {
		site.Zones[0].Mode = option.Mode(mode)
	}
	site.Prepare()
	r.Method = method
	q := newRequest(site, r)
	waits, err := serve.FindLimits(q)
	switch {
	case err != nil:
		t.Fatal(err)
	case q.Outcome.Status != 0:
		return fmt.Sprint(q.Outcome.Status, " ", q.Outcome.Reason)
	case waits:
		serve.Fill([]*serve.Request{q})
		return "[" + q.Hits[0].StoredKey() + "]"
	}
	return "passes"
}
