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

	// What the load sends to a path in half a second, and in one and a half.
	shortLoad, longLoad = 40, 125
)

// outageProxies start a Caddy and a Traefik on a database each. They have a limit that is never
// reached, with each on_error; no limit, to measure how slow the machine is; and a limit that is
// soon reached. The Traefik has its database from the environment.
func outageProxies(t *testing.T, ofCaddy, ofTraefik string) []proxy {
	t.Helper()
	c := startCaddy(t, ofCaddy,
		caddyRoute{"/allow", []string{limit("allow", "limit 1000000 1h", "key all", "on_error allow")}},
		caddyRoute{"/deny", []string{limit("deny", "limit 1000000 1h", "key all", "on_error deny")}},
		caddyRoute{"/none", nil},
		caddyRoute{"/tight", []string{exactly("tight", "limit 5 1h", "key {header.X-Key}")}},
	)
	backend := startBackend(t)
	tr := startTraefik(t, []route{
		{"/allow", backend, object{"prefix": "allow", "limit": "1000000 1h", "key": "all", "onError": "allow"}},
		{"/deny", backend, object{"prefix": "deny", "limit": "1000000 1h", "key": "all", "onError": "deny"}},
		{"/none", backend, nil},
		{"/tight", backend, decideAlways(object{"prefix": "tight", "limit": "5 1h", "key": "{header.X-Key}"})},
	}, "DATABASE_URL="+ofTraefik)
	return []proxy{{c.Process, c.url}, {tr.Process, tr.url}}
}

// outagePaths are where a load goes, in turn.
var outagePaths = []string{"/allow", "/deny", "/none"}

// outageLoad sends requests to a proxy, one every few milliseconds, until it is stopped.
type outageLoad struct {
	proxy            proxy
	admitted, denied atomic.Int64 // of the limit that denies without a decision
	cancel           context.CancelFunc
	done             chan *harness.Result
}

func startOutageLoads(t *testing.T, proxies []proxy) (all []*outageLoad) {
	for _, p := range proxies {
		ctx, cancel := context.WithCancel(t.Context())
		l := &outageLoad{proxy: p, cancel: cancel, done: make(chan *harness.Result, 1)}
		all = append(all, l)
		go func() {
			l.done <- harness.Run(ctx, harness.Load{Clients: 100, Every: 4 * time.Millisecond,
				Request: func(i int) *http.Request { return harness.Get(p.url + outagePaths[i%len(outagePaths)]) },
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
	}
	return all
}

// awaitMore waits until the counts of all loads have grown by n.
func awaitMore(t *testing.T, loads []*outageLoad, n int64, count func(*outageLoad) *atomic.Int64) {
	t.Helper()
	var enough []int64
	for _, l := range loads {
		enough = append(enough, count(l).Load()+n)
	}
	for i, l := range loads {
		await(t, "more answers of "+l.proxy.url, func() bool { return count(l).Load() >= enough[i] })
	}
}

func admitted(l *outageLoad) *atomic.Int64 { return &l.admitted }
func denied(l *outageLoad) *atomic.Int64   { return &l.denied }

// checkOutages stops the loads, and expects that each request was answered in time: by on_error
// during the outage, which lasted at least from down to up. On a busy machine, requests without a
// limit take long, too. A request with a limit may take that much longer twice: before it waits
// for its timeout, and after.
func checkOutages(t *testing.T, loads []*outageLoad, down, up time.Time) {
	t.Helper()
	for _, l := range loads {
		l.cancel()
		r := <-l.done
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
				t.Errorf("request %d, to %s%s, was answered %d", i, l.proxy.url, path, reply.Status)
			case deny && reply.Began.After(down) && reply.Began.Add(reply.Took).Before(up):
				t.Errorf("request %d to %s passed %v into the outage", i, l.proxy.url, reply.Began.Sub(down))
			}
		}
		for _, path := range outagePaths[:2] {
			if want := outageTimeout + outageMargin + 2*slowest["/none"]; slowest[path] > want {
				t.Errorf("a request to %s%s took %v, want %v at most (one without a limit took %v)", l.proxy.url, path, slowest[path], want, slowest["/none"])
			}
		}
		if denied == 0 {
			t.Errorf("%s: on_error denied nothing: there was no outage", l.proxy.url)
		}
		t.Logf("%s: %v; %d denied by on_error; slowest %v", l.proxy.url, r, denied, slowest)
	}
}

// awaitDecisions waits until all proxies decide again, at most until patience has passed since
// a time and, as in checkOutages, twice what a request without a limit takes. Then a limit of 5 is
// enforced for a new key.
func awaitDecisions(t *testing.T, proxies []proxy, since time.Time, patience time.Duration, key string) {
	t.Helper()
	for _, p := range proxies {
		for {
			began := time.Now()
			harness.Ask(t, harness.Get(p.url+"/none"))
			asked := time.Now()
			late := 2 * asked.Sub(began)
			answer := harness.Ask(t, harness.Get(p.url+"/deny"))
			if answer.Status == http.StatusOK {
				t.Logf("%s: limits hold again after %v", p.url, time.Since(since).Round(time.Millisecond))
				break
			}
			if asked.Sub(since) > patience+late {
				t.Fatalf("%s: %v after its return the database is not asked: %d %s", p.url, asked.Sub(since), answer.Status, answer.Body)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, p := range proxies {
		r := harness.Run(t.Context(), harness.Load{Clients: 4, Requests: 20, Request: func(int) *http.Request {
			return harness.Get(p.url+"/tight", "X-Key", key+p.url)
		}})
		if r.Status[200] != 5 || r.Status[429] != 15 {
			t.Errorf("%s: a limit of 5: %v", p.url, r)
		}
	}
}

func TestPostgresGoesAwayUnderLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	proxies := outageProxies(t, server.DSN("postgres"), server.DSN("postgres"))
	awaitDecisions(t, proxies, time.Now(), 30*time.Second, "before")
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
			loads := startOutageLoads(t, proxies)
			awaitMore(t, loads, shortLoad, admitted)
			if err := outage.begin(); err != nil {
				t.Fatal(err)
			}
			down := time.Now()
			awaitMore(t, loads, longLoad, denied)
			up := time.Now()
			if err := outage.end(); err != nil {
				t.Fatal(err)
			}
			awaitDecisions(t, proxies, time.Now(), backWithin, outage.name)
			awaitMore(t, loads, shortLoad, admitted)
			checkOutages(t, loads, down, up)
		})
	}
}

// TestPostgresIsABlackHole has addresses that take connections and never answer. connect_timeout
// bounds an attempt to connect, not a decision.
func TestPostgresIsABlackHole(t *testing.T) {
	var holes [2]*blackHole
	var dsns [2]string
	for i := range holes {
		holes[i] = startBlackHole(t)
		dsns[i] = "postgres://nobody@" + holes[i].address + "/nothing?sslmode=disable&connect_timeout=1"
	}
	proxies := outageProxies(t, dsns[0], dsns[1])
	began := time.Now()
	loads := startOutageLoads(t, proxies)
	for i, p := range proxies {
		await(t, p.url+" to give an attempt up", func() bool { return holes[i].left.Load() > 0 })
	}
	awaitMore(t, loads, shortLoad, denied)
	checkOutages(t, loads, began, time.Now())
}

// TestPostgresIsDownAtLoad starts proxies before their database.
func TestPostgresIsDownAtLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	proxies := outageProxies(t, server.DSN("postgres"), server.DSN("postgres"))
	for _, p := range proxies {
		for path, status := range map[string]int{"/allow": http.StatusOK, "/deny": http.StatusServiceUnavailable} {
			if a := harness.Ask(t, harness.Get(p.url+path)); a.Status != status || a.Header.Get("X-RateLimit-Limit") != "" {
				t.Errorf("%s%s without a database: %d %v", p.url, path, a.Status, a.Header)
			}
		}
	}
	loads := startOutageLoads(t, proxies)
	awaitMore(t, loads, shortLoad, denied)
	up := time.Now()
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitDecisions(t, proxies, time.Now(), backWithin, "new")
	checkOutages(t, loads, down, up)
	for _, p := range proxies {
		if !strings.Contains(p.Log(), "connect") {
			t.Errorf("the log of %s does not say why there was no decision:\n%s", p.url, p.Log())
		}
	}
}
