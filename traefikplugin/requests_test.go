package traefikplugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// limiting returns a middleware that counts in memory, by default 1 in an hour.
func limiting(t *testing.T, edit func(c *Config)) http.Handler {
	t.Helper()
	c := CreateConfig()
	c.Other["dsn"] = "memory"
	c.Other["prefix"] = t.Name()
	c.Other["limit"] = "1 1h"
	edit(c)
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return withLeases(open(t, t.Context(), newProcess(time.Millisecond), next, c))
}

// TestAnAddressInAnotherFormIsTheSameClient, and so is a host; another one is another
// client.
func TestAnAddressInAnotherFormIsTheSameClient(t *testing.T) {
	bits := 64
	forwarded := func(c *Config) { c.IPStrategy = &IPStrategy{Depth: 1, IPv6Subnet: &bits} }
	excluded := func(c *Config) { c.IPStrategy = &IPStrategy{ExcludedIPs: []string{"10.0.0.0/8"}} }
	connection := func(*Config) {}
	all := func(c *Config) { c.Other["ipv6Prefix"] = "128" }
	narrow := func(c *Config) { c.Other["ipv4Prefix"] = "24" }
	header := func(c *Config) { c.Other["key"] = "{header.X-Forwarded-For}" }
	mixed := func(c *Config) { c.Other["key"] = "{client_ip}|login" }
	host := func(c *Config) { c.Other["key"] = "{host}" }
	hostHeader := func(c *Config) { c.Other["key"] = "{header.Host}|" }
	for i, test := range []struct {
		edit     func(c *Config)
		one, two string // an X-Forwarded-For, or a host
		same     bool
	}{
		{forwarded, "203.0.113.9:1001", "203.0.113.9:1002", true},
		{forwarded, "::ffff:203.0.113.9", "203.0.113.9", true},
		{forwarded, "::ffff:192.0.2.1", "::ffff:198.51.100.7", false},
		{forwarded, "2001:db8::1", "[2001:DB8:0:0:1::]:80", true},
		{forwarded, "2001:db8::1", "2001:db8:0:1::1", false},
		{forwarded, "unknown", "hidden", false},
		{excluded, "203.0.113.9:1001, 10.1.1.1:80", "203.0.113.9, 10.1.1.1", true},
		{excluded, "203.0.113.9, ::ffff:10.1.1.1", "203.0.113.8, 10.1.1.1", false},
		{excluded, "2001:db8::1", "2001:db8::2, 10.1.1.1", true},
		{excluded, "2001:db8::1", "2001:db8:0:1::1, 10.1.1.1", false},
		{connection, "[2001:db8::1]:80", "[2001:db8::2]:80", true},
		{connection, "[2001:db8::1]:80", "[2001:db8:0:1::1]:80", false},
		{connection, "192.0.2.1:80", "[::ffff:192.0.2.1]:80", true},
		{all, "[2001:db8::1]:80", "[2001:db8::2]:80", false},
		{narrow, "192.0.2.1:80", "192.0.2.77:80", true},
		{header, "2001:db8::1", "2001:db8::2", true},
		{mixed, "[2001:db8::1]:80", "[2001:db8::2]:80", true},
		{host, "example.test", "Example.TEST:8080", true},
		{host, "a.test", "b.test", false},
		{host, "example.test", "example.test.", true},
		{hostHeader, "example.test", "EXAMPLE.test", true},
		{hostHeader, "a.test", "b.test", false},
	} {
		h := limiting(t, func(c *Config) {
			c.Other["prefix"] = fmt.Sprint(c.Other["prefix"], i)
			test.edit(c)
		})
		second := 0
		for _, client := range []string{test.one, test.two} {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host = client
			r.RemoteAddr = client
			r.Header.Set("X-Forwarded-For", client)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			second = w.Code
		}
		if (second == http.StatusTooManyRequests) != test.same {
			t.Errorf("%s, then %s: the second gets %d", test.one, test.two, second)
		}
	}
}

// The log warns once if a key is empty, because all such requests share a quota.
func TestAnEmptyKeyIsWarnedAboutOnce(t *testing.T) {
	output := logged(t, func() {
		h := limiting(t, func(c *Config) {
			c.Other["prefix"], c.Other["key"], c.Other["limit"] = "a", "{header.X-User}", "9 1h"
			c.Zones = []Zone{{Other: Settings{"prefix": "b", "key": "{cookie.user}", "limit": "9 1h"}}, {Other: Settings{"prefix": "c", "key": "all", "limit": "9 1h"}}}
		})
		for i := 0; i < 3; i++ {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
	})
	want := "the key of a request is empty: all such requests share one quota\n"
	if strings.Count(output, want) != 2 || !strings.Contains(output, "prefix a: "+want) || !strings.Contains(output, "prefix b: "+want) {
		t.Errorf("logs %q, want one warning for a and one for b", output)
	}
}

// TestRequestsAreNotKept in memory after their responses, not even because of a short key
// that is a part of a long request.
func TestRequestsAreNotKept(t *testing.T) {
	dsn := cluster.Open(t)
	h := limiting(t, func(c *Config) {
		c.Other["dsn"] = dsn
		c.Other["limit"] = "1000 1h"
		c.Other["key"] = "{query.user}"
		c.Other["timeout"] = "10s"
		c.Other["audit"] = "all"
	})
	withLongRequests(t, h, func(i int, long string) *http.Request {
		return httptest.NewRequest(http.MethodGet, fmt.Sprintf("/?user=u%d&%s", i, long), nil)
	})
}

// withLongRequests sends requests of 500 kB, and fails if they stay in memory after their responses.
func withLongRequests(t *testing.T, h http.Handler, made func(i int, long string) *http.Request) {
	t.Helper()
	conformance.Keeps(t, 30<<20, h, func() {
		for i := range 200 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, made(i, strings.Repeat("x", 500_000)))
			if w.Header().Get("X-RateLimit-Limit") == "" {
				t.Fatalf("no decision: %d", w.Code)
			}
		}
	})
}
