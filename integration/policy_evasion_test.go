package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestPathParametersDoNotPassABlockRule: many upstreams read /admin;x=1 as /admin.
func TestPathParametersDoNotPassABlockRule(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/pol/admin/*,/admin}',
		priority => 900);
		SELECT rate_limit_rule('api', paths => '{/api/*}', count_by => '{all}', per_hour => 1000000);`)
	urls := governedProxies(t, dsn)
	for _, url := range urls {
		for path, want := range map[string]string{
			"/pol/admin":                 "403",
			"/pol/admin/c;d":             "403", // in both readings
			"/x/..;/admin":               "400",
			"/admin;/x":                  "200", // /admin/x without its parameters
			"/api/cars;color=red/list":   "200 api",
			"/elsewhere/%253b/pol/admin": "200", // decoded once
		} {
			a := harness.Ask(t, harness.Get(url+path))
			got := fmt.Sprint(a.Status)
			if a.Header.Get("X-RateLimit-Limit") != "" && strings.HasPrefix(path, "/api/") {
				got += " api"
			}
			if got != want || a.Status == http.StatusBadRequest && !strings.Contains(a.Body,
				"Ambiguous path") {
				t.Errorf("%s%s: %s %s, want %s", url, path, got, a.Body, want)
			}
		}
		// Traefik itself may refuse an encoded semicolon.
		for _, path := range []string{"/admin%3bx", "/pol/admin%3Bx=1", "/x/..%3b/admin",
			"/x/%2e%2e%3B/admin", "/pol;a/admin%3bx", "/pol/admin%3b/c%2Fd", "/pol%3ba%2fb/admin",
			"/pol;a%2Fadmin/x", "/pol%2Fadmin;x"} {
			if a := harness.Ask(t, harness.Get(url+path)); a.Status != http.StatusBadRequest &&
				a.Status != http.StatusForbidden {
				t.Errorf("%s%s: %d %s, want 400", url, path, a.Status, a.Body)
			}
		}
	}
	// Traefik resolves dot segments before it asks its middlewares, and its upstream sees the result.
	for _, url := range urls[:2] {
		for _, path := range []string{"/x/y/..;/../admin", "/a/../b;c"} {
			if a := harness.Ask(t, harness.Get(url+path)); a.Status != http.StatusBadRequest {
				t.Errorf("%s%s: %d %s, want 400", url, path, a.Status, a.Body)
			}
		}
	}
}
