package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// reloads is how often each proxy is reloaded.
const reloads = 200

// TestReloadsUnderLoad: while a proxy is reloaded again and again, each request is charged to its limit, once. Then no slot is
// taken, and what the configurations had is closed.
func TestReloadsUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute, because stores stay open for a while after a reload")
	}
	// The settings of a reload differ from those before: a limit, and now and then the region.
	settings := func(backend string, i int) (routes []route) {
		for _, r := range []route{
			{"/exact", backend, object{"prefix": "exact", "key": "all", "limit": fmt.Sprint(1000000+i, " 1d"), "algorithm": "fixed_window"}},
			{"/flight", backend, object{"prefix": "flight", "key": "all", "limit": "1000", "algorithm": "in_flight"}},
		} {
			maps.Copy(r.limit, object{"timeout": "10s", "onError": "deny", "audit": "denied", "region": fmt.Sprint("r", i/50)})
			routes = append(routes, r)
		}
		return routes
	}
	t.Run("Caddy", func(t *testing.T) {
		t.Parallel()
		dsn, backend, address, admin := cluster.Open(t), startBackend(t), harness.FreeAddress(t), harness.FreeAddress(t)
		config := func(i int) string {
			return harness.Replace(t, caddyfile(address, dsn, settings(backend, i)), "admin off", "admin "+admin,
				"pg_ratelimit {", fmt.Sprintf("grace_period 1m\n\tpg_ratelimit {\n\t\tregion r%d", i/50))
		}
		c := launchConfig(t, buildCaddy(t), address, config(0))
		c.AwaitAddress(t, address)
		reloadUnderLoad(t, dsn, c.Process, c.url, "http://"+admin, func(i int) {
			if answer := loadConfig(t, admin, config(i)); answer.Status != http.StatusOK {
				t.Fatalf("the reload: %d %s", answer.Status, answer.Body)
			}
			awaitOneListener(t, address)
		})
	})
	t.Run("Traefik", func(t *testing.T) {
		t.Parallel()
		dsn, backend := cluster.Open(t), startBackend(t)
		tr := startTraefik(t, settings(backend, 0), "DATABASE_URL="+dsn)
		reloadUnderLoad(t, dsn, tr.Process, tr.url, tr.admin, func(i int) { tr.reload(t, settings(backend, i)) })
	})
}

// reloadUnderLoad reloads a proxy while requests come. admin has its profiles.
func reloadUnderLoad(t *testing.T, dsn string, proxy *harness.Process, url, admin string, reload func(i int)) {
	harness.Ask(t, harness.Get(url+"/exact")) // which connects
	before := openIn(t, proxy, admin)
	var passed atomic.Int64
	passed.Store(1)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 8, Every: 2 * time.Millisecond, Request: func(i int) *http.Request {
			return harness.Get(url + []string{"/exact", "/exact", "/exact", "/flight"}[i%4])
		}, Answered: func(i int, r harness.Reply) {
			switch {
			case r.Status == http.StatusOK && i%4 != 3:
				passed.Add(1)
			case r.Started && r.Status != http.StatusOK && !harness.Unheard(r.Err): // a server that ends closes connections on which no request has come
				t.Errorf("request %d is answered %d, %v", i, r.Status, r.Err)
			}
		}})
	}()
	for i := range reloads {
		reload(i + 1)
	}
	end()
	if r := <-done; r.Status[http.StatusOK] < reloads {
		t.Errorf("%v, want more requests", r)
	}
	if got := cluster.Query[int64](t, dsn, charged+" WHERE prefix = 'exact'"); got != passed.Load() {
		t.Errorf("%d requests passed, and %d were charged", passed.Load(), got)
	}
	const slack = reloads / 10 // of what a reload keeps, there would be as many as reloads
	var left [2]int
	await(t, "what the configurations had to be closed", func() bool {
		left = openIn(t, proxy, admin)
		return left[0] <= before[0]+slack && left[1] <= before[1]+slack && cluster.Query[int64](t, dsn, "SELECT coalesce(sum(cardinality(slots)), 0)::bigint FROM rate_limit_ephemeral") == 0
	})
	t.Logf("goroutines and files: %v, before %v", left, before)
}

// openIn is how many goroutines and how many files a process has.
func openIn(t *testing.T, proxy *harness.Process, admin string) [2]int {
	t.Helper()
	answer := harness.Ask(t, harness.Get(admin+"/debug/pprof/goroutine?debug=1"))
	first, _, _ := strings.Cut(answer.Body, "\n")
	goroutines, err := strconv.Atoi(strings.TrimPrefix(first, "goroutine profile: total "))
	if err != nil {
		t.Fatalf("%q: %v", first, err)
	}
	files := 0
	if folder, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", proxy.PID())); err == nil { // Linux has it
		files = len(folder)
	}
	return [2]int{goroutines, files}
}
