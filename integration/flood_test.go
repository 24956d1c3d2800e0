package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var (
	floodFor  = flag.Duration("flood", 12*time.Second, "for how long TestAFloodOfKeysIsBounded sends new keys")
	floodRate = flag.Int("flood-rate", 1000, "how many new keys a second, at most")
	floodKeys = flag.Int("flood-max-keys", 2000, "the max_keys of TestAFloodOfKeysIsBounded")
)

const (
	floodLimit = 20 // a minute, of each key
	floodUsers = 50 // of another limit
)

// floodProxies are a Caddy and a Traefik with the same limits on one database, and the admin endpoint of the Caddy.
func floodProxies(t *testing.T, dsn string) (all []proxy, admin string) {
	t.Helper()
	backend := startBackend(t)
	keys := fmt.Sprint(*floodKeys)
	tr := startTraefik(t, []route{
		{"/flooded", backend, object{"dsn": dsn, "timeout": "5s", "onError": "deny", "history": object{}, "prefix": "flooded", "key": "{header.X-Client}", "limit": fmt.Sprint(floodLimit, " 1m"), "maxKeys": keys}},
		{"/", backend, object{"dsn": dsn, "timeout": "5s", "onError": "deny", "history": object{}, "prefix": "users", "key": "{header.X-Client}", "limit": "100000 1m"}},
	})
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, fmt.Sprintf(`{
	admin %s
	auto_https off
	metrics
	pg_ratelimit {
		dsn %q
		history
	}
}
http://:%s {
	bind 127.0.0.1
	handle /flooded* {
		pg_ratelimit flooded {
			timeout 5s
			on_error deny
			key {header.X-Client}
			limit %d 1m
			max_keys %s
		}
		respond ok
	}
	handle {
		pg_ratelimit users {
			timeout 5s
			on_error deny
			key {header.X-Client}
			limit 100000 1m
		}
		respond ok
	}
}
`, admin, dsn, address[strings.LastIndex(address, ":")+1:], floodLimit, keys))
	c.AwaitAddress(t, address)
	return []proxy{{c.Process, c.url}, {tr.Process, tr.url}}, "http://" + admin
}

// p99 is the time within which 99 % of requests were answered.
func p99(replies []harness.Reply) time.Duration {
	var took []time.Duration
	for _, r := range replies {
		if r.Started {
			took = append(took, r.Took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// backendMB is how many MB of its own the largest process of a Postgres server has.
func backendMB(t *testing.T, server int) (largest int) {
	t.Helper()
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		stat, err := p.Stat()
		if err != nil || stat.PPID != server && p.PID != server {
			continue
		}
		if status, err := p.NewStatus(); err == nil {
			largest = max(largest, int(status.RssAnon>>20))
		}
	}
	return largest
}

// residentMB is how many MB a process has.
func residentMB(t *testing.T, pid int) int {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.NewStatus()
	if err != nil {
		t.Fatal(err)
	}
	return int(status.VmRSS >> 20)
}

// TestAFloodOfKeysIsBounded: clients that invent keys, hosts and paths grow neither the tables nor the processes beyond
// a bound, and others are served as before.
func TestAFloodOfKeysIsBounded(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	proxies, admin := floodProxies(t, dsn)
	conn := connect(t, dsn)
	number := func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), "SELECT ("+sql+")::bigint").Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}
	series := func() int {
		return strings.Count(harness.Ask(t, harness.Get(admin+"/metrics")).Body, "\ncaddy_")
	}
	// Users of another limit, and clients that the flooded limit knows.
	others := func(ctx context.Context) *harness.Result {
		return harness.Run(ctx, harness.Load{Clients: 4, Every: 20 * time.Millisecond, Request: func(i int) *http.Request {
			return harness.Get(proxies[i%2].url+"/users", "X-Client", fmt.Sprint("user", i%floodUsers))
		}})
	}
	var regular, refused atomic.Int64
	regulars := func(ctx context.Context) {
		harness.Run(ctx, harness.Load{Clients: 2, Every: time.Second, Request: func(i int) *http.Request {
			return harness.Get(proxies[i%2].url+"/flooded", "X-Client", fmt.Sprint("regular", i%10)) // 6 a minute each
		}, Answered: func(_ int, r harness.Reply) {
			if r.Status == http.StatusOK {
				regular.Add(1)
			} else if r.Started {
				refused.Add(1)
			}
		}})
	}
	passed := func(client string, times int) (n int) {
		for i := range times {
			if harness.Ask(t, harness.Get(proxies[i%2].url+"/flooded", "X-Client", client)).Status == http.StatusOK {
				n++
			}
		}
		return n
	}
	quiet, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	for i := range 10 {
		harness.Ask(t, harness.Get(proxies[i%2].url+"/flooded", "X-Client", fmt.Sprint("regular", i)))
	}
	began := time.Now()
	greedy := passed("greedy", 3)
	passed("refused", 2*floodLimit) // so that Caddy has all of its metrics
	before := others(quiet)
	cancel()
	type sizes struct{ rows, table, audit, wal, caddy, traefik, backend, series int }
	measure := func() sizes {
		return sizes{
			rows: number("SELECT count(*) FROM rate_limit_ephemeral WHERE prefix = 'flooded'"), table: number("SELECT pg_total_relation_size('rate_limit_ephemeral')") >> 20,
			audit: number("SELECT count(*) FROM rate_limit_audit"), wal: number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')") >> 20,
			caddy: residentMB(t, proxies[0].PID()), traefik: residentMB(t, proxies[1].PID()), backend: backendMB(t, postmaster(t, server)), series: series(),
		}
	}
	at := measure()
	t.Logf("before the flood: %+v, p99 of others %v", at, p99(before.Replies))

	ctx, cancel := context.WithTimeout(t.Context(), *floodFor)
	defer cancel()
	var group sync.WaitGroup
	var flood, during *harness.Result
	most := sizes{}
	group.Go(func() {
		flood = harness.Run(ctx, harness.Load{Clients: 64, Every: time.Second / time.Duration(*floodRate), Request: func(i int) *http.Request {
			r := harness.Get(fmt.Sprintf("%s/flooded/%x", proxies[i%2].url, rand.Uint64()), "X-Client", fmt.Sprintf("%x-%d", rand.Uint64(), i))
			r.Host = fmt.Sprintf("h%x.example.com", rand.Uint64())
			return r
		}})
	})
	group.Go(func() { during = others(ctx) })
	group.Go(func() { regulars(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(*floodFor / 10):
			now := measure()
			t.Logf("after %v: %+v", time.Since(began).Round(time.Second), now)
			most = sizes{rows: max(most.rows, now.rows), table: max(most.table, now.table), caddy: max(most.caddy, now.caddy), traefik: max(most.traefik, now.traefik), backend: max(most.backend, now.backend)}
		}
	}
	group.Wait()
	greedy += passed("greedy", 2*floodLimit)
	lasted := time.Since(began)
	end := measure()
	reached := float64(flood.Sent) / flood.Took.Seconds()
	t.Logf("%d new keys in %v, %.0f a second: %v; afterwards %+v; p99 of others %v", flood.Sent, flood.Took.Round(time.Second), reached, flood.Status, end, p99(during.Replies))

	// A few seconds pass until the proxies share, and while they agree whether they do.
	if bound := *floodKeys + int(8*reached) + 100; most.rows > bound {
		t.Errorf("the flooded limit has had %d rows, want at most %d", most.rows, bound)
	}
	if flood.Sent > 3*(*floodKeys+int(8*reached)) && flood.Status[http.StatusTooManyRequests] < flood.Sent/3 {
		t.Errorf("the flood was answered %v", flood.Status)
	}
	if n := flood.Status[http.StatusOK] + flood.Status[http.StatusTooManyRequests]; n != flood.Sent {
		t.Errorf("the flood was answered %v of %d", flood.Status, flood.Sent)
	}
	if during.Status[http.StatusOK] != during.Sent {
		t.Errorf("others were answered %v of %d", during.Status, during.Sent)
	}
	if refused.Load() > 0 || regular.Load() < int64(floodFor.Seconds()/2) {
		t.Errorf("%d requests of regular clients passed, and %d did not", regular.Load(), refused.Load())
	}
	if most := floodLimit * (1 + int(lasted.Minutes()+1)); greedy > most {
		t.Errorf("%d requests of one client have passed, want at most %d", greedy, most)
	}
	if grown := end.series - at.series; grown > 40 {
		t.Errorf("there are %d more metrics", grown)
	}
	for name, grown := range map[string]int{"Caddy": most.caddy - at.caddy, "Traefik": most.traefik - at.traefik, "a process of Postgres": most.backend - at.backend} {
		if grown > 250 {
			t.Errorf("%s has grown by %d MB", name, grown)
		}
	}
	if flood.Status[http.StatusTooManyRequests] > 0 {
		await(t, "both proxies to record refusals of all keys that share", func() bool {
			return number("SELECT count(DISTINCT node) FROM rate_limit_audit WHERE key = '(other)' AND prefix = 'flooded'") == 2
		})
	}
	if rows := end.audit - at.audit; rows > 100+int(10*lasted.Seconds()) {
		t.Errorf("the audit log has %d more rows after %v", rows, lasted)
	}
}

// postmaster is the first process of a server.
func postmaster(t *testing.T, server *cluster.Cluster) (pid int) {
	t.Helper()
	text, err := os.ReadFile(server.DataDir() + "/postmaster.pid")
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
