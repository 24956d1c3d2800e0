package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
)

// faultLasts is the duration of each fault of TestNoFaultMakesResponsesWrong.
var faultLasts = flag.Duration("fault-lasts", time.Second, "how long each fault lasts")

const (
	outageTimeout = 250 * time.Millisecond // for a decision: the default
	outageMargin  = 500 * time.Millisecond // for everything else that a request takes

	// overloadedAfter is the time that a request waits before a proxy refuses it as overloaded. If a busy
	// machine lets a request join the batch of an older one, it may wait only for outageTimeout.
	overloadedAfter = (health.MaxTimeouts - 1) * outageTimeout
)

// decidedInARow is the number of decisions without a failure after which limits count as exact again.
const decidedInARow = 10

const terminateBackends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = " +
	"'client backend' AND pid <> pg_backend_pid()"

// replicating is a server that can have a standby, and be one.
var replicating = cluster.Options{
	HBA:    "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n",
	Config: map[string]string{"max_connections": "60", "wal_retrieve_retry_interval": "200ms"},
}

// faultPaths are the paths of the load:
//   - /wide has a limit that is never reached, with on_error local.
//   - /tight has a limit that is used up, with on_error local.
//   - /deny responds 503 while the database makes no decisions.
//   - /none has no limit.
var faultPaths = []string{"/wide", "/tight", "/deny", "/none"}

// No fault of the database makes a response wrong: /wide admits all requests, and /tight refuses all. /tight
// has synchronous_commit, because without it a failover may lose the charges of the last 0.6 s. /used has the
// same limit with on_error deny, so its refusals come from the database. The test prints a table of the
// effects on requests, which docs/operating.md sums up.
func TestNoFaultMakesResponsesWrong(t *testing.T) {
	server, standby := cluster.Private(t, replicating), cluster.Private(t, replicating)
	if err := standby.Follow(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	networks := []*slownet.Proxy{slownet.Listen(t, fmt.Sprint("127.0.0.1:", server.Port()), 0),
		slownet.Listen(t, fmt.Sprint("127.0.0.1:", standby.Port()), 0)}
	dsn := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write",
		networks[0].Address, networks[1].Address)
	routes := faultRoutes()
	proxies := []*controlledProxy{startControlledCaddy(t, buildCaddy(t), "caddy", dsn, routes),
		startControlledTraefik(t, "traefik", dsn, routes)}
	var table strings.Builder
	table.WriteString("|fault|Caddy: longest added latency, ms|wrong responses|exact after, s|Traefik: " +
		"longest added latency, ms|wrong responses|exact after, s|\n|---|--:|--:|--:|--:|--:|--:|\n")
	bed := &faultBed{server, standby, networks, proxies}
	for _, fault := range bed.faults(t) {
		t.Run(fault.name, func(t *testing.T) {
			rows := measureFault(t, proxies, fault.name, fault.begin, fault.end)
			fmt.Fprintf(&table, "|%s|%s|\n", fault.name, strings.Join(rows, "|"))
		})
	}
	fmt.Print(table.String())
}

// runSQL runs commands on a server, each on a new connection.
func runSQL(dsn string, sql ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, s := range sql {
		if err := cluster.Run(ctx, dsn, s); err != nil {
			return err
		}
	}
	return nil
}

// useUpConnections ends connections of the proxies again and again for the duration lasts, and opens all
// connections that the server then allows.
func useUpConnections(dsn string, lasts time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var taken []*pgx.Conn
	defer func() {
		for _, c := range taken {
			_ = c.Close(ctx)
		}
	}()
	for until := time.Now().Add(lasts); time.Now().Before(until); {
		c, err := pgx.Connect(ctx, dsn+"&application_name=soak")
		if err == nil {
			taken = append(taken, c)
			continue
		}
		if !strings.Contains(err.Error(), "53300") || len(taken) == 0 {
			return err
		}
		if _, err := taken[0].Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND application_name <> 'soak' ORDER BY random()
			LIMIT 4`); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// measureFault causes a fault under load, and returns the cells of the table. It fails the test if a response
// is wrong, if the fault adds too much latency, or if limits are exact again too late.
func measureFault(t *testing.T, proxies []*controlledProxy, name string, begin, end func() error) (
	cells []string,
) {
	for _, p := range proxies {
		await(t, "exact limits", func() bool {
			return harness.Ask(t, harness.Get(p.url+"/deny")).Status == http.StatusOK
		})
		key := name + p.url
		await(t, "a used-up limit", func() bool {
			used, tight := harness.Ask(t, harness.Get(p.url+"/used", "X-Key", key)),
				harness.Ask(t, harness.Get(p.url+"/tight", "X-Key", key))
			return used.Status == http.StatusTooManyRequests && tight.Status == http.StatusTooManyRequests
		})
	}
	results := make([]*harness.Result, len(proxies))
	var loads sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	inARow := make([]atomic.Int64, len(proxies)) // decisions
	for i, p := range proxies {
		loads.Go(func() {
			results[i] = harness.Run(ctx, harness.Load{Clients: 60, Every: 6 * time.Millisecond,
				Request: func(n int) *http.Request {
					return harness.Get(p.url+faultPaths[n%len(faultPaths)], "X-Key", name+p.url)
				}, Replied: func(n int, r harness.Reply) {
					if faultPaths[n%len(faultPaths)] == "/deny" && r.Status == http.StatusOK {
						inARow[i].Add(1)
					} else if faultPaths[n%len(faultPaths)] == "/deny" {
						inARow[i].Store(0)
					}
				}})
		})
	}
	late := lateness()
	time.Sleep(300 * time.Millisecond) // under load before the fault, too
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	if end != nil {
		time.Sleep(*faultLasts)
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	ended := time.Now()
	time.Sleep(*faultLasts) // the replies in this time after the fault count, too
	for i, p := range proxies {
		await(t, "decisions of "+p.url, func() bool { return inARow[i].Load() >= decidedInARow })
	}
	cancel()
	loads.Wait()
	busy := late()
	for i, r := range results {
		slowest := map[string]time.Duration{}
		wrong, exact, row := 0, time.Duration(0), 0
		for n, reply := range r.Replies {
			if !reply.Started {
				continue
			}
			if name == "a reload" && reply.Began.Before(ended) && harness.Unheard(reply.Err) {
				continue // the path /none has such replies, too
			}
			path := faultPaths[n%len(faultPaths)]
			slowest[path] = max(slowest[path], reply.Took)
			want := http.StatusOK
			if path == "/tight" {
				want = http.StatusTooManyRequests
			}
			undecided := reply.Status == http.StatusServiceUnavailable
			switch {
			case undecided && path == "/deny":
				// A busy machine may miss a timeout later on.
				if row < decidedInARow {
					row, exact = 0, reply.Began.Add(reply.Took).Sub(ended)
				}
			case undecided && path != "/none" && reply.Took >= max(outageTimeout, overloadedAfter-4*busy):
				// An overloaded proxy refuses even with on_error local. The check of the added latency below
				// fails if the refusal was too late.
			case reply.Status != want:
				wrong++
				t.Logf("%s%s, %v after the end: %d %v after %v", proxies[i].url, path, reply.Began.Sub(ended),
					reply.Status, reply.Err, reply.Took)
			case path == "/deny" && reply.Began.After(ended):
				row++
			}
		}
		added := max(0, max(slowest["/wide"], slowest["/tight"], slowest["/deny"])-slowest["/none"])
		// A busy machine makes a request late each time that it starts to run again.
		slack := 4 * max(slowest["/none"], busy)
		if wrong > 0 || added > outageTimeout+outageMargin+slack || exact > 10*time.Second+slack {
			t.Errorf("%s: %d wrong responses, %v more latency (%v without a limit), exact after %v",
				proxies[i].url, wrong, added, slowest["/none"], exact)
		}
		cells = append(cells, fmt.Sprintf("%d|%d|%.1f", added.Milliseconds(), wrong, max(0, exact.Seconds())))
	}
	return cells
}

// wideRoute returns a route with a limit that is never reached. Its prefix is the path.
func wideRoute(path, onError string) route {
	return route{path: path, limit: object{"prefix": path, "limit": "1000000 1h", "key": "all",
		"onError": onError}}
}

// tightRoute returns a route with a limit of 3. All such routes share its counters.
func tightRoute(path, onError string) route {
	return route{path: path, limit: object{"prefix": "tight", "limit": "3 1h", "algorithm": "fixed_window",
		"key": "{header.X-Key}", "durable": true, "synchronousCommit": true, "onError": onError}}
}

// faultRoutes returns the limits of faultPaths.
func faultRoutes() []route {
	return []route{wideRoute("/wide", "local"), tightRoute("/tight", "local"), tightRoute("/used", "deny"),
		wideRoute("/deny", "deny"), {path: "/none"}}
}

// faultBed has what the faults of TestNoFaultMakesResponsesWrong act on.
type faultBed struct {
	server, standby *cluster.Cluster
	networks        []*slownet.Proxy
	proxies         []*controlledProxy
}

// tableFault is a fault of TestNoFaultMakesResponsesWrong.
type tableFault struct {
	name       string
	begin, end func() error // end is nil if the fault ends by itself
}

// serverFaults returns the faults of a server and of the networks before it.
func serverFaults(server *cluster.Cluster, networks ...*slownet.Proxy) []tableFault {
	each := func(f func(*slownet.Proxy)) func() error {
		return func() error {
			for _, network := range networks {
				f(network)
			}
			return nil
		}
	}
	restart := func() error { return server.Restart(context.Background()) }
	return []tableFault{
		{name: "Postgres restarts", begin: server.Stop, end: restart},
		{name: "`kill -9` of Postgres", begin: server.Kill, end: restart},
		{name: "Postgres hangs (SIGSTOP)", begin: server.Pause, end: server.Resume},
		{name: "the network drops all packets",
			begin: each(func(n *slownet.Proxy) { n.SetHanging(true) }),
			end:   each(func(n *slownet.Proxy) { n.SetHanging(false) })},
		{name: "1 s latency", begin: each(func(n *slownet.Proxy) { n.SetRoundTrip(time.Second) }),
			end: each(func(n *slownet.Proxy) { n.SetRoundTrip(0) })},
		{name: "all connections reset", begin: each((*slownet.Proxy).CloseConnections)},
		{name: "all backends terminated", begin: func() error {
			return runSQL(server.DSN("postgres"), terminateBackends)
		}},
	}
}

// faults returns the faults in the order in which they are tried.
func (b *faultBed) faults(t *testing.T) []tableFault {
	var locks *pgx.Conn
	vacuumed := make(chan error, 1)
	return append(serverFaults(b.server, b.networks...), []tableFault{
		{name: "a row is locked", begin: func() error {
			locks = cluster.Connect(t, b.server.DSN("postgres"))
			_, err := locks.PgConn().Exec(t.Context(),
				"BEGIN; SELECT 1 FROM rate_limit_ephemeral WHERE prefix IN ('/wide', '/deny') FOR UPDATE").
				ReadAll()
			return err
		}, end: func() error { return locks.Close(context.Background()) }},
		{name: "`VACUUM FULL` waits for a reader", begin: func() error {
			locks = cluster.Connect(t, b.server.DSN("postgres"))
			_, err := locks.PgConn().Exec(t.Context(), "BEGIN; SELECT FROM rate_limit_ephemeral").ReadAll()
			go func() {
				vacuumed <- runSQL(b.server.DSN("postgres"), "VACUUM FULL rate_limit_ephemeral",
					"VACUUM FULL rate_limit_durable")
			}()
			return err
		}, end: func() error { return errors.Join(locks.Close(context.Background()), <-vacuumed) }},
		{name: "`max_connections` used up", begin: func() error {
			return useUpConnections(b.server.DSN("postgres"), *faultLasts)
		}},
		{name: "a reload", begin: func() error {
			for _, p := range b.proxies {
				p.reload()
			}
			return nil
		}},
		{name: "a rejected reload", begin: func() error {
			for _, p := range b.proxies {
				p.reject()
			}
			return nil
		}},
		{name: "failover after `kill -9`", begin: b.server.Kill, end: func() error {
			return runSQL(b.standby.DSN("postgres"), "SELECT pg_promote()")
		}},
	}...)
}
