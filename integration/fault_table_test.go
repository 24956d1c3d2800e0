package integration

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
)

// faultLasts is how long each fault of TestFaultTable lasts.
var faultLasts = flag.Duration("fault-lasts", time.Second, "how long each fault of TestFaultTable lasts")

// decidedInARow is how many decisions without a failure show that limits are exact again.
const decidedInARow = 10

const terminateBackends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

// faultPaths are where the load of TestFaultTable goes, in turn: a limit that is never reached, with on_error local, one
// that is used up, one that tells by status 503 that the database makes no decisions, and no limit.
var faultPaths = []string{"/wide", "/tight", "/deny", "/none"}

// TestFaultTable prints a table of docs/operating.md: what a fault of the database does to requests. No answer is
// wrong: a request passes the limit that is never reached, and is refused by the one that is used up.
func TestFaultTable(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	network, dsn := slownet.ListenFor(t, server.DSN("postgres"), 0)
	wide, tight := object{"prefix": "wide", "limit": "1000000 1h", "key": "all", "onError": "local"}, object{"prefix": "tight", "limit": "3 1h", "algorithm": "fixed_window", "key": "{header.X-Key}", "durable": "true", "onError": "local"}
	c := startCaddy(t, dsn,
		caddyRoute{"/wide", []string{limit("wide", "limit 1000000 1h", "key all", "on_error local")}},
		caddyRoute{"/tight", []string{limit("tight", "limit 3 1h", "algorithm fixed_window", "key {header.X-Key}", "durable", "on_error local")}},
		caddyRoute{"/deny", []string{limit("deny", "limit 1000000 1h", "key all", "on_error deny")}},
		caddyRoute{"/none", nil},
	)
	backend := startBackend(t)
	tr := startTraefik(t, []route{
		{"/wide", backend, wide}, {"/tight", backend, tight},
		{"/deny", backend, object{"prefix": "deny", "limit": "1000000 1h", "key": "all", "onError": "deny"}},
		{"/none", backend, nil},
	}, "DATABASE_URL="+dsn)
	proxies := []proxy{{c.Process, c.url}, {tr.Process, tr.url}}
	var locks *pgx.Conn
	var table strings.Builder
	table.WriteString("| fault | Caddy: longest added latency | wrong answers | exact after | Traefik: longest added latency | wrong answers | exact after |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, fault := range []struct {
		name       string
		begin, end func() error
	}{
		{"Postgres restarts", server.Stop, func() error { return server.Restart(context.Background()) }},
		{"`kill -9` of Postgres (`durable`: other limits are full again)", server.Kill, func() error { return server.Restart(context.Background()) }},
		{"Postgres hangs (SIGSTOP)", server.Pause, server.Resume},
		{"the network drops all packets", func() error { network.SetHanging(true); return nil }, func() error { network.SetHanging(false); return nil }},
		{"1 s latency", func() error { network.SetRoundTrip(time.Second); return nil }, func() error { network.SetRoundTrip(0); return nil }},
		{"all connections reset", func() error { network.CloseConnections(); return nil }, nil},
		{"all backends terminated", func() error {
			execute(t, server.DSN("postgres"), terminateBackends)
			return nil
		}, nil},
		{"a row is locked", func() error {
			locks = connect(t, server.DSN("postgres"))
			_, err := locks.PgConn().Exec(t.Context(), "BEGIN; SELECT 1 FROM rate_limit_ephemeral WHERE prefix IN ('wide', 'deny') FOR UPDATE").ReadAll()
			return err
		}, func() error { return locks.Close(context.Background()) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			rows := measureFault(t, proxies, fault.name, fault.begin, fault.end)
			fmt.Fprintf(&table, "| %s | %s |\n", fault.name, strings.Join(rows, " | "))
		})
	}
	fmt.Print(table.String())
}

// measureFault has a fault under load, and returns the cells of the table.
func measureFault(t *testing.T, proxies []proxy, key string, begin, end func() error) (cells []string) {
	for _, p := range proxies {
		await(t, "exact limits", func() bool { return harness.Ask(t, harness.Get(p.url+"/deny")).Status == http.StatusOK })
		key := key + p.url
		await(t, "a used-up limit", func() bool {
			return harness.Ask(t, harness.Get(p.url+"/tight", "X-Key", key)).Status == http.StatusTooManyRequests
		})
	}
	results := make([]*harness.Result, len(proxies))
	var loads sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i, p := range proxies {
		loads.Go(func() {
			results[i] = harness.Run(ctx, harness.Load{Clients: 60, Every: 6 * time.Millisecond, Request: func(n int) *http.Request {
				return harness.Get(p.url+faultPaths[n%len(faultPaths)], "X-Key", key+p.url)
			}})
		})
	}
	time.Sleep(300 * time.Millisecond)
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
	time.Sleep(4 * time.Second)
	cancel()
	loads.Wait()
	for i, r := range results {
		slowest := map[string]time.Duration{}
		wrong, exact, row := 0, time.Duration(0), 0
		for n, reply := range r.Replies {
			if !reply.Started {
				continue
			}
			path := faultPaths[n%len(faultPaths)]
			slowest[path] = max(slowest[path], reply.Took)
			switch {
			case path == "/deny" && reply.Status == http.StatusServiceUnavailable:
				// A busy machine may miss a timeout later on.
				if row < decidedInARow {
					row, exact = 0, reply.Began.Add(reply.Took).Sub(ended)
				}
			case path == "/deny" && reply.Status == http.StatusOK && reply.Began.After(ended):
				row++
			case path == "/tight" && reply.Status != http.StatusTooManyRequests, path != "/tight" && reply.Status != http.StatusOK:
				wrong++
				t.Logf("%s%s, %v after the end: %d %v", proxies[i].url, path, reply.Began.Sub(ended), reply.Status, reply.Err)
			}
		}
		added := max(0, max(slowest["/wide"], slowest["/tight"], slowest["/deny"])-slowest["/none"])
		if wrong > 0 || added > outageTimeout+outageMargin+slowest["/none"] || exact > 3*time.Second+2*slowest["/none"] {
			t.Errorf("%s: %d wrong answers, %v more latency (%v without a limit), exact after %v", proxies[i].url, wrong, added, slowest["/none"], exact)
		}
		cells = append(cells, fmt.Sprintf("%d ms | %d | %.1f s", added.Milliseconds(), wrong, max(0, exact.Seconds())))
	}
	return cells
}
