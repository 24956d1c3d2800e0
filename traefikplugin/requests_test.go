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
	return open(t, t.Context(), newProcess(time.Millisecond), next, c)
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
