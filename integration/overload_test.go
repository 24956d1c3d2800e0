package integration

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestOverloadOpensNoLimit in both proxies, with on_error allow, for limits of all kinds: beside four busy loops, 2,500
// connections ask for more than the proxies can decide, and no more passes than the limits allow. Some are refused with
// 503, which are not counted here. On a busy machine, Postgres itself may get the processor too late to answer within the
// timeout, which is an outage. A burst of requests is therefore repeated up to twice: one of three must hold.
func TestOverloadOpensNoLimit(t *testing.T) {
	for _, test := range []struct {
		name    string
		limit   object
		rule    string
		passing func(took time.Duration) int // how many may pass, or be in flight with slots
		slots   bool
	}{
		{name: "an exact limit", limit: object{"key": "all", "algorithm": "gcra", "limit": "10 1s", "burst": "1"},
			passing: func(took time.Duration) int { return 1 + int(took/(100*time.Millisecond)) }},
		{name: "leases", limit: object{"key": "{header.X-Burst}", "algorithm": "fixed_window", "limit": "300 1h", "lease": "5%"},
			passing: func(time.Duration) int { return 300 }},
		{name: "slots", limit: object{"key": "all", "algorithm": "in_flight", "limit": "3"},
			passing: func(time.Duration) int { return 3 }, slots: true},
		// Both proxies share the counter of the rule.
		{name: "a policy", limit: object{"policy": object{"user": "{header.X-User}"}},
			rule:    "SELECT rate_limit_rule('all', count_by => '{all}', algorithm => 'gcra', per_hour => 36000, burst => 1)",
			passing: func(took time.Duration) int { return 1 + int(took/(100*time.Millisecond)) }},
	} {
		dsn := policyDatabase(t, test.rule)
		test.limit["timeout"] = "250ms"
		if test.rule == "" {
			test.limit["prefix"] = "PROXY"
		}
		var running, most atomic.Int64
		backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if test.slots {
				time.Sleep(20 * time.Millisecond) // the work of a request
			}
		}))
		defer backend.Close()
		for proxy, url := range bothProxies(t, dsn, backend.URL, test.limit) {
			await(t, "the first decision", func() bool { return harness.Ask(t, harness.Get(url)).Header.Get("X-Ratelimit-Limit") != "" })
			passed, may := 1, 0
			for burst := 0; burst < 3 && passed > may; burst++ {
				request := func(int) *http.Request { return harness.Get(url, "X-Burst", strconv.Itoa(burst)) }
				most.Store(0)
				end := busyLoops(t)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				began := time.Now()
				result := harness.Run(ctx, harness.Load{Clients: 2500, Request: request})
				took := time.Since(began)
				cancel()
				end()
				t.Logf("%s in %s: %v in %v, %d at once", test.name, proxy, result.Status, took.Round(time.Millisecond), most.Load())
				passed, may = result.Status[http.StatusOK], test.passing(took)
				if test.slots {
					passed = int(most.Load())
				}
			}
			if passed > may {
				t.Errorf("%s in %s: %d passed, at most %d may", test.name, proxy, passed, may)
			}
		}
	}
}

// busyLoops starts four programs that use the processor, and returns what ends them.
func busyLoops(t *testing.T) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var loops []*exec.Cmd
	for range 4 {
		loop := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	return func() {
		stop()
		for _, loop := range loops {
			_ = loop.Wait()
		}
	}
}
