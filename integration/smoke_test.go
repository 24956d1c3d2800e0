package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// TestSmoke is the test of real programs in `make test`: two Caddys, and the plugin in Traefik's interpreter,
// on one Postgres. It asserts nothing about time.
func TestSmoke(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, schema.File+policytest.People+
		"SELECT rate_limit_rule('plan', tiers => '{free}', "+
		"algorithm => 'fixed_window', per_day => 20);")
	var urls, pages []string
	for range 2 {
		limits, page := harness.FreeAddress(t), harness.FreeAddress(t)
		config := caddyfile(limits, dsn, smokeRoutes()) +
			fmt.Sprintf("\nhttp://%s {\n\tbind 127.0.0.1\n\tpg_ratelimit_page {\n\t\tinsecure\n\t}\n}\n",
				page)
		c := launchConfig(t, buildCaddy(t), limits, config)
		c.AwaitAddress(t, limits)
		urls, pages = append(urls, c.url), append(pages, "http://"+page)
	}
	urls = append(urls, serveInterpreted(t, dsn))
	t.Run("a limit is shared exactly", func(t *testing.T) { checkShared(t, urls) })
	t.Run("a change of the policy is obeyed", func(t *testing.T) { checkPolicy(t, dsn, urls) })
	t.Run("the page answers", func(t *testing.T) { checkPages(t, pages) })
	t.Run("an outage", func(t *testing.T) { checkOutage(t, server, urls) })
}

// smokeRoutes returns the limits of TestSmoke.
func smokeRoutes() []route {
	return []route{
		{"/shared", "", decideAlways(object{"prefix": "shared", "key": "all", "limit": "90 1d",
			"algorithm": "fixed_window"})},
		{"/allow", "", object{"prefix": "allow", "key": "all", "limit": "3 1d", "algorithm": "fixed_window",
			"timeout": "30s", "onError": "allow"}},
		{"/deny", "", decideAlways(object{"prefix": "deny", "key": "all", "limit": "1000000 1d",
			"algorithm": "fixed_window"})},
		{"/policy", "", decideAlways(object{"policy": object{"user": "{header.X-User}"}})},
	}
}

// serveInterpreted serves the plugin with the limits of TestSmoke, in an interpreter, and returns its URL.
func serveInterpreted(t *testing.T, dsn string) string {
	t.Helper()
	p := loadPlugin(t)
	mux := http.NewServeMux()
	for _, r := range smokeRoutes() {
		r.limit["dsn"] = dsn
		mux.Handle(r.path, p.mustHandler(t, ok, r.limit))
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// sendAs sends requests of a user from many clients to the proxies in turn, and returns how many
// pass. Any other answer than 200 and 429 fails the test.
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
		t.Fatalf("answers other than 200 and 429: %v", r)
	}
	return r.Status[http.StatusOK]
}

// checkShared uses up a limit of 90 in all proxies at once.
func checkShared(t *testing.T, urls []string) {
	t.Helper()
	r := harness.Run(t.Context(), harness.Load{Clients: 24, Requests: 300,
		Request: func(i int) *http.Request {
			return harness.Get(urls[i%len(urls)] + "/shared")
		}})
	if err := r.Err(); err != nil || r.Status[http.StatusOK] != 90 ||
		r.Status[http.StatusTooManyRequests] != 210 {
		t.Errorf("%v, %v: want 90 that pass and 210 refusals", r, err)
	}
	for _, url := range urls {
		answer := harness.Ask(t, harness.Get(url+"/shared"))
		if answer.Status != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" ||
			answer.Header.Get("X-RateLimit-Limit") != "90" ||
			answer.Header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("%s refuses with %d, %v", url, answer.Status, answer.Header)
		}
	}
}

// checkPolicy uses up the limit of a rule, changes it, and bans the user.
func checkPolicy(t *testing.T, dsn string, urls []string) {
	t.Helper()
	awaitObeyed(t, dsn, len(urls))
	if passed := sendAs(t, urls, "/policy", 60, "alice"); passed != 20 {
		t.Errorf("%d passed by a rule of 20", passed)
	}
	cluster.Execute(t, dsn, "SELECT rate_limit_rule('plan', per_day => 26)")
	awaitObeyed(t, dsn, len(urls))
	if passed := sendAs(t, urls, "/policy", 60, "alice"); passed != 6 {
		t.Errorf("%d more passed when the rule had 26, want 6", passed)
	}
	cluster.Execute(t, dsn, "INSERT INTO rate_limit_bans (user_id) VALUES ('alice')")
	awaitObeyed(t, dsn, len(urls))
	if got := statusesOf(t, urls, 3, "/policy", "X-User", "alice"); got != "403 403 403" {
		t.Errorf("a banned user gets %s", got)
	}
}

// checkPages asks each page for itself and for the state.
func checkPages(t *testing.T, pages []string) {
	t.Helper()
	for _, url := range pages {
		if answer := harness.Ask(t, harness.Get(url+"/")); answer.Status != http.StatusOK ||
			!strings.Contains(answer.Body, "<!doctype html>") {
			t.Errorf("%s answers %d, %.100s", url, answer.Status, answer.Body)
		}
		await(t, "the state", func() bool {
			return strings.Contains(harness.Ask(t, harness.Get(url+"/api/state")).Body,
				`"state":"enforcing"`)
		})
	}
}

// checkOutage kills the database, and restarts it. Its limits hold again.
func checkOutage(t *testing.T, server *cluster.Cluster, urls []string) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for i, url := range urls {
		await(t, "a pass without the database", func() bool {
			return harness.Ask(t, harness.Get(url+"/allow")).Status == http.StatusOK
		})
		status := harness.Ask(t, harness.Get(url+"/deny")).Status
		if status != http.StatusServiceUnavailable {
			t.Errorf("proxy %d answers %d without the database, where on_error is deny", i, status)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, url := range urls {
		await(t, "decisions after the outage", func() bool {
			return harness.Ask(t, harness.Get(url+"/deny")).Status == http.StatusOK
		})
	}
	// The limit of 3 holds again for all of them together.
	statusesOf(t, urls, 3, "/allow")
	if got := statusesOf(t, urls, 3, "/allow"); got != "429 429 429" {
		t.Errorf("after the outage, a limit of 3 that is used up answers %s", got)
	}
}

// statusesOf sends n requests to the proxies in turn, and returns the statuses of their answers.
func statusesOf(t *testing.T, urls []string, n int, path string, headers ...string) string {
	t.Helper()
	var all []string
	for i := range n {
		answer := harness.Ask(t, harness.Get(urls[i%len(urls)]+path, headers...))
		all = append(all, fmt.Sprint(answer.Status))
	}
	return strings.Join(all, " ")
}
