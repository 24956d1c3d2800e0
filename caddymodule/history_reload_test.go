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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// A reload loses and doubles no request, neither in the counter nor in the history, whether the history
// changes or not. Neither does the end of the process. TestSoak has what reloads leave open.
func TestAReloadLosesNoRecord(t *testing.T) {
	const reloads = 12
	dsn := cluster.Open(t)
	c := start(t, recordedSite(dsn, 0))
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
				if a, err := c.tryAgain("/"); err != nil || a.Status != http.StatusOK {
					t.Errorf("%d, %v", a.Status, err)
					return
				}
				sent.Add(1)
			}
		})
	}
	more := func() {
		before := sent.Load()
		await.Within(t, time.Minute, "requests", func() bool { return t.Failed() || sent.Load() >= before+5 })
	}
	for i := 1; i <= reloads; i++ {
		more()
		c.load(recordedSite(dsn, i))
	}
	more()
	close(stop)
	clients.Wait()
	caddymodule.CloseHistories() // as at the end of the process
	const counts = `SELECT concat_ws(' ', (SELECT sum(count) FROM rate_limit_ephemeral),
		(SELECT sum(count) FROM rate_limit_audit), (SELECT sum(requests) FROM rate_limit_metrics_day),
		(SELECT count(DISTINCT region) FROM rate_limit_audit), (SELECT sum(dropped) FROM rate_limit_writers))`
	n := sent.Load()
	if got, want := cluster.Query[string](t, dsn, counts), fmt.Sprint(n, n, n, 1+reloads/4, 0); got != want {
		t.Errorf("counter, audit log, metrics, regions and dropped: %s, want %s", got, want)
	}
}

// recordedSite returns the i-th of several configurations that record all requests. Each has another quota,
// and every fourth another region.
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
		}
	}`)
}
