package integration

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// endOfOutage matches the log line of Caddy or Traefik, with a number of requests above 0.
var endOfOutage = regexp.MustCompile(
	`the database answers again.*(: [1-9]\d* requests had no decision|requests_without_decision":[1-9])`)

// Proxies that start before their database follow on_error and log the cause. Once the database has started,
// they log the end of the outage, and decide exactly from the first burst on. TestNoFaultMakesResponsesWrong
// tests outages that begin later.
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
		await(t, "the end of the outage in the log of "+p.url,
			func() bool { return endOfOutage.MatchString(p.Log()) })
		burst := harness.Run(t.Context(), harness.Load{Clients: 100, Requests: 100,
			Request: func(int) *http.Request { return harness.Get(p.url+"/tight", "X-Key", p.url) }})
		if got := burst.String(); got != "200×5 429×95" {
			t.Errorf("%s, a burst of 100 on a limit of 5: %s, want 200×5 429×95", p.url, got)
		}
	}
}
