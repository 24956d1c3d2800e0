package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// stateSQL returns the state of all proxies, and stopped is its result after their end.
const (
	stateSQL = "SELECT string_agg(concat(state, ': ', summary), ' ') FROM rate_limit_state"
	stopped  = "stopped: No proxy counts in this database."
)

// hasTable reports whether a database has a table.
func hasTable(t *testing.T, dsn, name string) bool {
	t.Helper()
	return cluster.Query[bool](t, dsn, "SELECT to_regclass($1) IS NOT NULL", name)
}

// When Traefik stops, the plugin writes the history of all requests and the end of the proxy, even if a
// client keeps its connection open, as most clients do. The open connection delays the end of Traefik by half
// a second.
func TestTraefikWritesTheHistoryWhenItEnds(t *testing.T) {
	const n = 1700
	dsn := cluster.Open(t)
	tr := startTraefik(t, []route{{path: "/", backend: startBackend(t), limit: decideAlways(object{"dsn": dsn,
		"prefix": "end", "key": "{header.X-Key}", "limit": "1000000 1h", "audit": "all"})}})
	harness.Ask(t, harness.Get(tr.url+"/", "X-Key", "first"))
	await(t, "the first row", func() bool { // the plugin creates the tables
		return hasTable(t, dsn, "rate_limit_audit") &&
			cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit") > 0 &&
			cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_nodes") > 0
	})
	r := harness.Run(t.Context(), harness.Load{Clients: 32, Requests: n, Request: func(i int) *http.Request {
		return harness.Get(tr.url+"/", "X-Key", fmt.Sprint("key-", i))
	}})
	if err := r.Err(); err != nil || r.Status[http.StatusOK] != n {
		t.Fatalf("the statuses are %v, error %v, want %d times 200", r, err, n)
	}
	client := &http.Client{Transport: &http.Transport{}}
	if _, err := harness.AskBy(client, harness.Get(tr.url+"/", "X-Key", "last")); err != nil {
		t.Fatal(err)
	}
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}
	for what, sql := range map[string]string{
		"rows in the audit log": "SELECT sum(count) FROM rate_limit_audit",
		"requests in the metrics": "SELECT coalesce(sum(requests), 0) FROM rate_limit_metrics " +
			"WHERE granularity = 'minute'",
	} {
		if got := cluster.Query[int64](t, dsn, sql); got != n+2 {
			t.Errorf("%d %s, want %d", got, what, n+2)
		}
	}
	check.Equal(t, "the state", cluster.Query[string](t, dsn, stateSQL), stopped)
}
