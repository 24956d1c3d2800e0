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

// memoryMiddleware returns a middleware that counts in memory. Its limit is 1 per hour unless edit changes
// it.
func memoryMiddleware(t *testing.T, edit func(c *Config)) http.Handler {
	t.Helper()
	c := CreateConfig()
	c.Other["dsn"] = "memory"
	c.Other["prefix"] = t.Name()
	c.Other["limit"] = "1 1h"
	edit(c)
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return newMiddleware(t, t.Context(), newProcess(time.Millisecond), next, c)
}

// TestRequestsAreNotKept checks that requests do not stay in memory after their responses, even if their key
// is a substring of a long URL.
func TestRequestsAreNotKept(t *testing.T) {
	dsn := cluster.Open(t)
	h := memoryMiddleware(t, func(c *Config) {
		c.Other["dsn"] = dsn
		c.Other["limit"] = "1000 1h"
		c.Other["key"] = "{query.user}"
		c.Other["timeout"] = "10s"
		c.Other["audit"] = "all"
	})
	checkLongRequests(t, h, func(i int, long string) *http.Request {
		return httptest.NewRequest(http.MethodGet, fmt.Sprintf("/?user=u%d&%s", i, long), nil)
	})
}

// checkLongRequests sends requests of 500 kB. It fails the test if they stay in memory after their responses.
func checkLongRequests(t *testing.T, h http.Handler, newRequest func(i int, long string) *http.Request) {
	t.Helper()
	conformance.CheckHeapGrowth(t, 30<<20, h, func() {
		for i := range 200 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, newRequest(i, strings.Repeat("x", 500_000)))
			if w.Header().Get("X-RateLimit-Limit") == "" {
				t.Fatalf("status %d without X-RateLimit-Limit, want a decision", w.Code)
			}
		}
	})
}
