package integration

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const (
	outageTimeout = 250 * time.Millisecond // for a decision: the default
	outageMargin  = 50 * time.Millisecond  // for everything else that a request takes
	backWithin    = 2 * time.Second        // for limits to hold again
)

// outageRoutes have a limit that is never reached, with each on_error; no limit, to measure
// how slow the machine is; and a limit that is soon reached.
func outageRoutes() []caddyRoute {
	return []caddyRoute{
		{"/allow", []string{limit("allow", "limit 1000000 1h", "key all", "on_error allow")}},
		{"/deny", []string{limit("deny", "limit 1000000 1h", "key all", "on_error deny")}},
		{"/none", nil},
		{"/tight", []string{exactly("tight", "limit 5 1h", "key {header.X-Key}")}},
	}
}

// outagePaths are where a load goes, in turn.
var outagePaths = []string{"/allow", "/deny", "/none"}

// outageLoad sends requests, one every few milliseconds, until it is stopped.
type outageLoad struct {
	admitted, denied atomic.Int64 // of the limit that denies without a decision
	cancel           context.CancelFunc
	done             chan *harness.Result
}

func startOutageLoad(t *testing.T, c *caddy) *outageLoad {
	ctx, cancel := context.WithCancel(t.Context())
	l := &outageLoad{cancel: cancel, done: make(chan *harness.Result, 1)}
	go func() {
		l.done <- harness.Run(ctx, harness.Load{Clients: 100, Every: 4 * time.Millisecond,
			Request: func(i int) *http.Request { return harness.Get(c.url + outagePaths[i%len(outagePaths)]) },
			Answered: func(i int, r harness.Reply) {
				if outagePaths[i%len(outagePaths)] == "/deny" && r.Err == nil {
					if r.Status == http.StatusOK {
						l.admitted.Add(1)
					} else {
						l.denied.Add(1)
					}
				}
			}})
	}()
	return l
}

// await waits until a count has grown by as much as the load sends in about half a second.
func (l *outageLoad) await(t *testing.T, count *atomic.Int64) {
	t.Helper()
	until := time.Now().Add(30 * time.Second)
	for enough := count.Load() + 40; count.Load() < enough; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d admitted, %d denied by on_error", l.admitted.Load(), l.denied.Load())
		}
	}
}

func (l *outageLoad) stop() *harness.Result {
	l.cancel()
	return <-l.done
}

// checkOutage expects that each request was answered in time: by on_error during the
// outage, which lasted at least from down to up. On a busy machine, requests without a limit
// take long, too. A request with a limit may take that much longer twice: before it waits
// for its timeout, and after.
func checkOutage(t *testing.T, r *harness.Result, down, up time.Time) {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	denied := 0
	slowest := map[string]time.Duration{}
	for i, reply := range r.Replies {
		if !reply.Started || reply.Err != nil {
			continue
		}
		path := outagePaths[i%len(outagePaths)]
		slowest[path] = max(slowest[path], reply.Took)
		deny := path == "/deny"
		switch {
		case deny && reply.Status == http.StatusServiceUnavailable:
			denied++
		case reply.Status != http.StatusOK:
			t.Errorf("request %d, to %s, was answered %d", i, path, reply.Status)
		case deny && reply.Began.After(down) && reply.Began.Add(reply.Took).Before(up):
			t.Errorf("request %d passed %v into the outage", i, reply.Began.Sub(down))
		}
	}
	for _, path := range outagePaths[:2] {
		if want := outageTimeout + outageMargin + 2*slowest["/none"]; slowest[path] > want {
			t.Errorf("a request to %s took %v, want %v at most (one without a limit took %v)", path, slowest[path], want, slowest["/none"])
		}
	}
	if denied == 0 {
		t.Error("on_error denied nothing: there was no outage")
	}
	t.Logf("%v; %d denied by on_error; slowest %v", r, denied, slowest)
}

// awaitDecisions waits until a Caddy decides again, at most until patience has passed since
// a time.
func awaitDecisions(t *testing.T, c *caddy, since time.Time, patience time.Duration) {
	t.Helper()
	for {
		asked := time.Now()
		answer := harness.Ask(t, harness.Get(c.url+"/deny"))
		if answer.Status == http.StatusOK {
			t.Logf("limits hold again after %v", time.Since(since).Round(time.Millisecond))
			return
		}
		if asked.Sub(since) > patience {
			t.Fatalf("%v after its return the database is not asked: %d %s", asked.Sub(since), answer.Status, answer.Body)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// checkTight expects that a limit of 5 is enforced for a new key.
func checkTight(t *testing.T, c *caddy, key string) {
	t.Helper()
	r := harness.Run(t.Context(), harness.Load{Clients: 4, Requests: 20, Request: func(int) *http.Request {
		return harness.Get(c.url+"/tight", "X-Key", key)
	}})
	if r.Status[200] != 5 || r.Status[429] != 15 {
		t.Errorf("a limit of 5: %v", r)
	}
}

func TestPostgresGoesAwayUnderLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	c := startCaddy(t, server.DSN("postgres"), outageRoutes()...)
	awaitDecisions(t, c, time.Now(), 30*time.Second)
	restart := func() error { return server.Restart(context.Background()) }
	for _, outage := range []struct {
		name       string
		begin, end func() error
	}{
		{"stopped", server.Stop, restart},
		{"killed", server.Kill, restart},
		{"hanging", server.Pause, server.Resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			load := startOutageLoad(t, c)
			load.await(t, &load.admitted)
			if err := outage.begin(); err != nil {
				t.Fatal(err)
			}
			down := time.Now()
			load.await(t, &load.denied)
			up := time.Now()
			if err := outage.end(); err != nil {
				t.Fatal(err)
			}
			awaitDecisions(t, c, time.Now(), backWithin)
			checkTight(t, c, outage.name)
			checkOutage(t, load.stop(), down, up)
		})
	}
}

// TestPostgresIsABlackHole has an address that takes connections and never
// answers.
func TestPostgresIsABlackHole(t *testing.T) {
	c := startCaddy(t, "postgres://nobody@"+blackHole(t)+"/nothing?sslmode=disable", outageRoutes()...)
	began := time.Now()
	load := startOutageLoad(t, c)
	load.await(t, &load.denied)
	checkOutage(t, load.stop(), began, time.Now())
}

// TestPostgresIsDownAtLoad starts a Caddy before its database.
func TestPostgresIsDownAtLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	c := startCaddy(t, server.DSN("postgres"), outageRoutes()...)
	load := startOutageLoad(t, c)
	load.await(t, &load.denied)
	up := time.Now()
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitDecisions(t, c, time.Now(), backWithin)
	checkTight(t, c, "new")
	checkOutage(t, load.stop(), down, up)
	if !strings.Contains(c.Log(), "connect") {
		t.Errorf("the log does not say why there was no decision:\n%s", c.Log())
	}
}
