package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Proxies that start before their database follow on_error, log the cause, and decide once the database has
// started. TestNoFaultMakesResponsesWrong tests outages that begin later.
func TestPostgresIsDownAtLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	proxies := startBoth(t, dsn, wideRoute("/allow", "allow"), wideRoute("/deny", "deny"),
		route{path: "/tight", limit: decideAlways(object{"prefix": "tight", "limit": "5 1h",
			"key": "{header.X-Key}"})})
	for _, p := range proxies {
		for path, status := range map[string]int{"/allow": http.StatusOK,
			"/deny": http.StatusServiceUnavailable} {
			response := harness.Ask(t, harness.Get(p.url+path))
			if response.Status != status || response.Header.Get("X-RateLimit-Limit") != "" {
				t.Errorf("%s%s without a database: %d %v, want %d without fields", p.url, path,
					response.Status, response.Header, status)
			}
		}
		if !strings.Contains(p.Log(), "connect") {
			t.Errorf("the log of %s lacks the cause of the outage:\n%s", p.url, p.Log())
		}
	}
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		await(t, "decisions of "+p.url, func() bool { return statusesOf(t, 1, p.url+"/deny") == "200" })
		if got := statusesOf(t, 6, p.url+"/tight", "X-Key", p.url); got != "200 200 200 200 200 429" {
			t.Errorf("%s, a limit of 5: statuses %s, want five times 200 and 429", p.url, got)
		}
	}
}
