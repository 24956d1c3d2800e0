package integration

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestTraefikWritesTheHistoryWhenItEnds sends requests to a Traefik and ends it with SIGTERM at once, while
// a client keeps its connection open, as most do: Traefik then takes half a second to end.
func TestTraefikWritesTheHistoryWhenItEnds(t *testing.T) {
	dsn := cluster.Open(t)
	routes := []route{{"/", startBackend(t), decideAlways(object{"dsn": dsn, "prefix": "end",
		"key": "{header.X-Key}", "limit": "1000000 1h", "audit": "all"})}}
	sent := int64(0)
	for _, n := range []int{1, 1700} {
		tr := startTraefik(t, routes)
		harness.Ask(t, harness.Get(tr.url+"/", "X-Key", "first")) // the tables are made
		await(t, "the first row", func() bool {
			return cluster.Query[int64](t, dsn,
				"SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_audit'") == 1 &&
				cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit") >= sent+1
		})
		r := harness.Run(t.Context(), harness.Load{Clients: 32, Requests: n,
			Request: func(i int) *http.Request {
				return harness.Get(tr.url+"/", "X-Key", fmt.Sprint("key-", i))
			}})
		if err := r.Err(); err != nil || r.Status[http.StatusOK] != n {
			t.Fatal(r, err)
		}
		sent += int64(n) + 2
		client := &http.Client{Transport: &http.Transport{}}
		response, err := client.Do(harness.Get(tr.url+"/", "X-Key", "last"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		response.Body.Close() // and the connection is kept
		began := time.Now()
		if err := tr.Stop(); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		rows := cluster.Query[int64](t, dsn, "SELECT sum(count) FROM rate_limit_audit")
		counted := cluster.Query[int64](t, dsn,
			"SELECT coalesce(sum(requests), 0) FROM rate_limit_metrics WHERE granularity = 'minute'")
		t.Logf("after %d requests Traefik ended in %v: %d rows, %d requests in the metrics, want %d", n, took,
			rows, counted, sent)
		if rows != sent || counted != sent {
			t.Errorf("after %d requests, the audit log has %d and the metrics %d, want %d", n, rows, counted,
				sent)
		}
	}
}
