package integration

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// keysInTheClear is how many durable keys of a prefix are not digests.
func keysInTheClear(t *testing.T, dsn, prefix string) int64 {
	t.Helper()
	return queryInt(t, dsn, "SELECT count(*) FROM rate_limit_durable WHERE prefix = $1 AND key NOT LIKE 'sha256:%'", prefix)
}

func TestReloadsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const (
		reloads  = 150
		warm     = 30 // reloads until the goroutines are counted first
		maxConns = 4
		routers  = 10
	)
	backend, first, second := startBackend(t), cluster.Open(t), cluster.Open(t)
	// Every generation differs in each middleware, so that each is made anew.
	routes := func(dsn string, generation int) []route {
		var all []route
		for i := range routers {
			all = append(all, route{"/" + strconv.Itoa(i), backend, object{
				"dsn": dsn, "prefix": "reload", "key": strconv.Itoa(i), "limit": strconv.Itoa(1000000+generation) + " 1h",
				"algorithm": "fixed_window", "maxConns": maxConns, "timeout": "5s", "onError": "deny",
			}})
		}
		return all
	}
	tr := startTraefik(t, routes(first, 0))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 8, Every: 2 * time.Millisecond, Request: func(i int) *http.Request {
			return harness.Get(tr.url + "/" + strconv.Itoa(i%routers))
		}})
	}()
	began := time.Now()
	early, earlyConnections := 0, 0
	for generation := 1; generation <= reloads; generation++ {
		tr.reload(t, routes(first, generation))
		if generation == warm {
			early, _ = tr.goroutines(t)
			earlyConnections = cluster.Connections(t, first)
		}
	}
	late, stacks := tr.goroutines(t)
	lateConnections := cluster.Connections(t, first)
	t.Logf("%d reloads in %v: %d goroutines after %d, %d at the end; %d and %d connections", reloads, time.Since(began).Round(time.Millisecond), early, warm, late, earlyConnections, lateConnections)
	// Each client's connection and each to the backend has some.
	if late > early+20 {
		t.Errorf("%d goroutines after %d reloads, %d after %d\n%s", early, warm, late, reloads, stacks)
	}
	if lateConnections > maxConns || earlyConnections > maxConns {
		t.Errorf("%d and %d connections, of at most %d", earlyConnections, lateConnections, maxConns)
	}

	// Another database, with requests in flight.
	before := sumOf(t, first, "reload")
	tr.reload(t, routes(second, 0))
	switched := time.Now()
	await(t, "hits in the second database", func() bool {
		return queryInt(t, second, "SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_ephemeral'") == 1 && sumOf(t, second, "reload") >= 100
	})
	cancel()
	r := <-done
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if len(r.Status) != 1 || r.Status[http.StatusOK] == 0 {
		t.Errorf("%v; want nothing but 200", r)
	}
	inFirst, inSecond := sumOf(t, first, "reload"), sumOf(t, second, "reload")
	if inFirst+inSecond != int64(r.Status[http.StatusOK]) {
		t.Errorf("%d hits in the first database and %d in the second, of %d requests", inFirst, inSecond, r.Status[http.StatusOK])
	}
	if before == 0 || inSecond == 0 {
		t.Errorf("%d hits in the first database before the change, %d in the second after it", before, inSecond)
	}
	// The old pool is closed after 10 s and the middleware's timeout, 5 s.
	t.Logf("%v; %d hits in the first database, %d in the second", r, inFirst, inSecond)
	for cluster.Connections(t, first) > 0 {
		if time.Since(switched) > 60*time.Second {
			t.Fatalf("%d connections to the first database, %v after the change", cluster.Connections(t, first), time.Since(switched))
		}
		time.Sleep(250 * time.Millisecond)
	}
	if a := harness.Ask(t, harness.Get(tr.url+"/0")); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Limit") != "1000000" {
		t.Errorf("after the old pool has gone: %d %v", a.Status, a.Header)
	}
}
