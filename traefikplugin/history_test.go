package traefikplugin

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
)

// Middlewares of several reloads share a history. It is closed, and what is pending written, before
// the pool is closed.
func TestAReloadLosesNoRecord(t *testing.T) {
	const reloads, each = 5, 20
	dsn := cluster.Open(t)
	r := newRegistry(100 * time.Millisecond)
	c := valid()
	c.DSN, c.Limit, c.Timeout, c.OnError, c.Audit, c.Lease = dsn, "1000000 1h", "30s", "deny", "all", "5%"
	var next served
	var last *handler
	for range reloads {
		ctx, cancel := context.WithCancel(t.Context())
		last = open(t, ctx, r, &next, c)
		h := withQueue(last)
		if _, leased := h.(*leasedHandler); leased {
			t.Fatal("a handler that does not record serves the requests")
		}
		for range each {
			if w := ask(h); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		r.mu.Lock()
		last.pool.longest = 0 // no request waits
		r.mu.Unlock()
		cancel()
	}
	for until := time.Now().Add(20 * time.Second); !isClosed(last.pool); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the pool was not closed")
		}
	}
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	var rows, requests, writers int
	err := conn.QueryRow(t.Context(), `SELECT (SELECT sum(count) FROM rate_limit_audit), (SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute'),
		(SELECT count(*) FROM rate_limit_writers)`).Scan(&rows, &requests, &writers)
	if err != nil || rows != reloads*each || requests != reloads*each || writers < 1 {
		t.Errorf("%d rows and %d requests in the metrics, want %d; %v", rows, requests, reloads*each, err)
	}
}
