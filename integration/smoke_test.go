package integration

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// Two Caddys, and the plugin in Traefik's interpreter, share limits and a policy on one Postgres: together
// they admit exactly the quota, and they apply a changed limit and a ban. `make test` runs this test of real
// programs, which asserts no times.
func TestSmoke(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+
		"SELECT rate_limit_rule('plan', tiers => '{free}', "+
		"algorithm => 'fixed_window', per_day => 20);")
	var urls []string
	for range 2 {
		urls = append(urls, startCaddy(t, dsn, smokeRoutes()...).url)
	}
	urls = append(urls, serveInterpreted(t, dsn))
	t.Run("a limit is shared exactly", func(t *testing.T) { checkShared(t, urls) })
	t.Run("a change of the policy is applied", func(t *testing.T) { checkPolicy(t, dsn, urls) })
}

// smokeRoutes returns the limits of TestSmoke.
func smokeRoutes() []route {
	return []route{
		{path: "/shared", limit: decideAlways(object{"prefix": "shared", "key": "all", "limit": "90 1d",
			"algorithm": "fixed_window"})},
		{path: "/policy", limit: decideAlways(object{"policy": object{"user": "{header.X-User}"}})},
	}
}

// serveInterpreted serves the plugin with the limits of TestSmoke, in an interpreter, and returns its URL.
func serveInterpreted(t *testing.T, dsn string) string {
	t.Helper()
	p := loadPlugin(t)
	mux := http.NewServeMux()
	for _, r := range smokeRoutes() {
		r.limit["dsn"] = dsn
		mux.Handle(r.path, p.mustHandler(t, emptyOK, r.limit))
	}
	return harness.Serve(t, mux.ServeHTTP)
}

// sendAs sends requests of a user from many clients to the proxies in turn, and returns how many
// passed. Any status other than 200 and 429 fails the test.
func sendAs(t *testing.T, urls []string, path string, requests int, user string) (passed int) {
	t.Helper()
	r := harness.Run(t.Context(), harness.Load{Clients: 48, Requests: requests,
		Request: func(i int) *http.Request {
			return harness.Get(urls[i%len(urls)]+path, "X-User", user)
		}})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Status[http.StatusOK]+r.Status[http.StatusTooManyRequests] != requests {
		t.Fatalf("the statuses of %d requests: %v, want 200 and 429 only", requests, r)
	}
	return r.Status[http.StatusOK]
}

// checkShared uses up a limit of 90 in all proxies concurrently.
func checkShared(t *testing.T, urls []string) {
	t.Helper()
	check.Equal(t, "passed of 300", sendAs(t, urls, "/shared", 300, "alice"), 90)
	for _, url := range urls {
		refused := harness.Ask(t, harness.Get(url+"/shared"))
		if refused.Status != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
			t.Errorf("%s, used up: %d %v, want 429 with Retry-After", url, refused.Status, refused.Header)
		}
	}
}

// checkPolicy uses up the limit of a rule, changes it, and bans the user.
func checkPolicy(t *testing.T, dsn string, urls []string) {
	t.Helper()
	awaitPolicyApplied(t, dsn, len(urls))
	check.Equal(t, "passed of a rule of 20", sendAs(t, urls, "/policy", 60, "alice"), 20)
	cluster.Execute(t, dsn, "SELECT rate_limit_rule('plan', per_day => 26)")
	awaitPolicyApplied(t, dsn, len(urls))
	check.Equal(t, "passed when the rule had 26", sendAs(t, urls, "/policy", 60, "alice"), 6)
	cluster.Execute(t, dsn, "INSERT INTO rate_limit_bans (user_id) VALUES ('alice')")
	awaitPolicyApplied(t, dsn, len(urls))
	for _, url := range urls {
		if got := statusesOf(t, 1, url+"/policy", "X-User", "alice"); got != "403" {
			t.Errorf("%s, a banned user: status %s, want 403", url, got)
		}
	}
}
