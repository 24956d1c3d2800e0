package caddymodule_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// During reloads and at the end of the process, each request is counted once and recorded once, even if a
// reload changes the settings of the history, as every fourth one does here. TestSoak checks that reloads
// leave nothing open.
func TestAReloadLosesNoRecord(t *testing.T) {
	const reloads = 12
	dsn := cluster.Open(t)
	c := caddytest.Start(t, recordedSite(dsn, 0))
	var sent atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := c.GetRetrying("/"); err != nil || a.Status != http.StatusOK {
					t.Errorf("got status %d and error %v, want 200", a.Status, err)
					return
				}
				sent.Add(1)
			}
		})
	}
	awaitMore := func() {
		before := sent.Load()
		await.Within(t, time.Minute, "requests", func() bool { return t.Failed() || sent.Load() >= before+5 })
	}
	for i := 1; i <= reloads; i++ {
		awaitMore()
		c.Load(recordedSite(dsn, i))
	}
	awaitMore()
	close(stop)
	clients.Wait()
	caddymodule.CloseHistories() // as at the end of the process
	const counts = `SELECT concat_ws(' ', (SELECT sum(count) FROM rate_limit_ephemeral),
		(SELECT sum(count) FROM rate_limit_audit), (SELECT sum(requests) FROM rate_limit_metrics_day),
		(SELECT count(DISTINCT region) FROM rate_limit_audit), (SELECT sum(dropped) FROM rate_limit_writers),
		(SELECT string_agg(DISTINCT endpoint, ' ') FROM rate_limit_metrics))`
	n := sent.Load()
	want := fmt.Sprint(n, n, n, 1+reloads/4, 0, " api")
	if got := cluster.Query[string](t, dsn, counts); got != want {
		t.Errorf("counter, audit log, metrics, regions, dropped and routes are %s, want %s", got, want)
	}
}

// recordedSite returns the i-th of several configurations that record all requests. Each one has a different
// quota, and every fourth one a different region.
func recordedSite(dsn string, i int) string {
	return strings.NewReplacer("DSN", dsn, "REGION", strconv.Itoa(i/4), "QUOTA", strconv.Itoa(1000000+i)).
		Replace(`
	{
		pg_ratelimit {
			dsn DSN
			region REGION
			history
		}
	}
	:PORT {
		pg_ratelimit PREFIX {
			limit QUOTA 1h
			algorithm fixed_window
			timeout 10s
			on_error deny
			audit all
			route api
		}
	}`)
}
