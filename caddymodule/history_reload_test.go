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

// A reload loses and doubles no record, whether the history changes or not, and neither does the
// end of the process.
func TestAReloadLosesNoRecord(t *testing.T) {
	const reloads = 12
	dsn := cluster.Open(t)
	site := func(i int) string {
		return strings.NewReplacer("DSN", dsn, "REGION", strconv.Itoa(i/4), "QUOTA", strconv.Itoa(1000000+i)).Replace(`
		{
			pg_ratelimit {
				dsn DSN
				history {
					region REGION
				}
			}
		}
		:PORT {
			pg_ratelimit PREFIX {
				limit QUOTA 1h
				timeout 10s
				on_error deny
				audit all
			}
		}`)
	}
	c := start(t, site(0))
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
				if a, err := c.tryAgain("/"); err != nil || a.status != http.StatusOK {
					t.Errorf("%d, %v", a.status, err)
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
		c.load(site(i))
	}
	more()
	close(stop)
	clients.Wait()
	caddymodule.CloseHistories() // as at the end of the process
	const counts = "SELECT concat_ws(' ', (SELECT sum(count) FROM rate_limit_audit), (SELECT sum(requests) FROM rate_limit_metrics), (SELECT count(DISTINCT region) FROM rate_limit_audit), (SELECT sum(dropped) FROM rate_limit_writers))"
	if got, want := query[string](t, dsn, counts), fmt.Sprintf("%d %d %d 0", sent.Load(), sent.Load(), 1+reloads/4); got != want {
		t.Errorf("audit log, metrics, regions and dropped: %s, want %s", got, want)
	}
}
