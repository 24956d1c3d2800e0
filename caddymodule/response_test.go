package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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

// A limit with overage refuses nobody, also if an override leaves nothing of its quota, of which no
// percentage is reached.
func TestOverageBeyondNothingIsServed(t *testing.T) {
	dsn := policytest.Open(t, `INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'anonymous');
		SELECT rate_limit_rule('over', count_by => '{user}', algorithm => 'fixed_window', per_hour => 5,
			on_exceed => 'overage', notify => '{50}');
		SELECT rate_limit_override('over', 'per_hour', '0', user_id => 'ann');`)
	c := caddytest.Start(t, ":PORT")
	c.Load(strings.NewReplacer("DSN", dsn, "LIMITS", "").Replace(policySite))
	for used, want := range []string{"[0] [0] [1]", "[0] [0] [2]"} {
		h := c.Expect(http.StatusOK, "/", "X-User", "ann").Header
		check.Equal(t, fmt.Sprint("the headers after ", used), fmt.Sprint(h["X-Ratelimit-Limit"],
			h["X-Ratelimit-Remaining"], h["X-Ratelimit-Overage"]), want)
	}
}
