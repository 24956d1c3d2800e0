package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An upstream may have limits of its own.
func TestHeadersOfAnUpstream(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("X-RateLimit-Remaining", "3")
		w.Header().Set("X-RateLimit-Reset", "5")
		w.Header().Set("Retry-After", "9")
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	const site = `
		:PORT {
			route {
				pg_ratelimit PREFIX_%d {
					dsn memory
					limit 100 1h
				}
				%s
				reverse_proxy %s
			}
		}`
	const inner = `
		encode gzip
		pg_ratelimit PREFIX_inner {
			dsn memory
			limit 50 1h
		}`
	c := start(t, ":PORT")
	for i, test := range []struct{ more, want string }{{"", "[100] [99]"}, {inner, "[50] [49]"}} {
		c.load(fmt.Sprintf(site, i, test.more, upstream.URL))
		a := c.expect(http.StatusOK, "/")
		if got := fmt.Sprint(a.Header["X-Ratelimit-Limit"],
			a.Header["X-Ratelimit-Remaining"]); got != test.want || a.Body != "hello" ||
			a.Header.Get("Retry-After") != "9" {
			t.Errorf("%s %s, Retry-After %q; want %s", got, a.Body, a.Header["Retry-After"], test.want)
		}
	}
}

// The oldest Caddy that works clears the headers of a response when it has sent 103.
func TestHeadersStayAfterAnInformationalResponse(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("X-RateLimit-Remaining", "7")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	dsn := withPolicy(t, `SELECT rate_limit_rule('over', count_by => '{user}', algorithm => 'fixed_window',
		per_hour => 1, on_exceed => 'overage');`)
	c := start(t, ":PORT")
	site := strings.NewReplacer("DSN", dsn, "LIMITS", "").Replace(policySite)
	before, _, _ := strings.Cut(site, "respond")
	c.load(before + "reverse_proxy " + upstream.URL + "\n}")
	c.expect(http.StatusOK, "/", "X-User", "ann")
	a := c.expect(http.StatusOK, "/", "X-User", "ann")
	if got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"],
		a.Header["X-Ratelimit-Overage"]); got != "[1] [0] [1]" || a.Body != "hello" {
		t.Errorf("%s %s", got, a.Body)
	}
}
