package traefikplugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
)

// limiting returns a middleware that counts in memory, by default 1 in an hour.
func limiting(t *testing.T, edit func(c *Config)) http.Handler {
	t.Helper()
	c := CreateConfig()
	c.DSN = "memory"
	c.Prefix = t.Name()
	c.Limit = "1 1h"
	edit(c)
	r, next := newRegistry(time.Millisecond), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	h := open(t, t.Context(), r, next, c)
	if e := r.entranceOf(h.pool, h.gate.Timeout); e != nil {
		return &entering{idle: e.idle, queue: e.queue, form: h.form, next: next, h: h}
	}
	return h
}

// TestOneClient: whatever a proxy or a client makes of an address or a host, it
// is the same client; and another one is another.
func TestOneClient(t *testing.T) {
	bits := 64
	forwarded := func(c *Config) { c.IPStrategy = &IPStrategy{Depth: 1, IPv6Subnet: &bits} }
	excluded := func(c *Config) { c.IPStrategy = &IPStrategy{ExcludedIPs: []string{"10.0.0.0/8"}} }
	host := func(c *Config) { c.Key = "{host}" }
	hostHeader := func(c *Config) { c.Key = "{header.Host}|" }
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
		{host, "example.test", "Example.TEST:8080", true},
		{host, "a.test", "b.test", false},
		{hostHeader, "example.test", "EXAMPLE.test", true},
		{hostHeader, "a.test", "b.test", false},
	} {
		h := limiting(t, func(c *Config) {
			c.Prefix = fmt.Sprint(c.Prefix, i)
			test.edit(c)
		})
		second := 0
		for _, who := range []string{test.one, test.two} {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host = who
			r.Header.Set("X-Forwarded-For", who)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			second = w.Code
		}
		if (second == http.StatusTooManyRequests) != test.same {
			t.Errorf("%s, then %s: the second is answered %d", test.one, test.two, second)
		}
	}
}

// TestFreeRequests: who says that his request costs nothing passes as long as
// something is left, and takes nothing.
func TestFreeRequests(t *testing.T) {
	h := limiting(t, func(c *Config) {
		c.Limit = "2 1h"
		c.Cost = "{header.X-Cost}"
	})
	for i, step := range []struct {
		cost string
		want int
	}{{"0", 200}, {"0", 200}, {"0", 200}, {"2", 200}, {"0", 429}, {"1", 429}, {"0", 429}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Cost", step.cost)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != step.want {
			t.Errorf("request %d, of cost %s: %d, want %d", i, step.cost, w.Code, step.want)
		}
	}
}

// TestRequestsAreNotKept: once they are answered, nothing holds them, not even a
// short key out of a long one.
func TestRequestsAreNotKept(t *testing.T) {
	dsn := cluster.Open(t)
	h := limiting(t, func(c *Config) {
		c.DSN = dsn
		c.Limit = "1000 1h"
		c.Key = "{query.user}"
		c.Timeout = "10s"
	})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := 0; i < 200; i++ {
		r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://h/?user=u%d&%s", i, strings.Repeat("x", 500_000)), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = "192.0.2.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Header().Get("X-RateLimit-Limit") == "" {
			t.Fatalf("no decision: %d", w.Code)
		}
	}
	if held := heap() - before; held > 30<<20 {
		t.Errorf("200 requests that are over hold %d MB", held>>20)
	}
	runtime.KeepAlive(h)
}
