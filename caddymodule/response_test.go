package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// The headers of the limit stay after an informational response. The oldest Caddy that works clears the
// headers of a response after it has sent status 103.
func TestHeadersStayAfterInformationalResponse(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("X-RateLimit-Remaining", "7")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	dsn := policytest.Open(t, `SELECT rate_limit_rule('over', count_by => '{user}',
		algorithm => 'fixed_window', per_hour => 1, on_exceed => 'overage');`)
	c := caddytest.Start(t, ":PORT")
	site := strings.NewReplacer("DSN", dsn, "LIMITS", "").Replace(policySite)
	before, _, _ := strings.Cut(site, "respond")
	c.Load(before + "reverse_proxy " + upstream.URL + "\n}")
	c.Expect(http.StatusOK, "/", "X-User", "ann")
	a := c.Expect(http.StatusOK, "/", "X-User", "ann")
	got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"],
		a.Header["X-Ratelimit-Overage"])
	if got != "[1] [0] [1]" || a.Body != "hello" {
		t.Errorf("limit, remaining and overage are %s with body %q, want [1] [0] [1] and hello", got, a.Body)
	}
}
