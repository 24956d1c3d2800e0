package integration

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// localOutage is for how long Postgres is away in TestProxiesLimitThemselves.
var localOutage = flag.Duration("local-outage", 4*time.Second, "how long the outage of TestProxiesLimitThemselves lasts")

// localLimits are the limits of TestProxiesLimitThemselves. quota is how much passes at once, and each is what
// comes back in a second.
var localLimits = []struct {
	name        string
	quota, each float64
	limit       object
}{
	{"fixed", 100, 0, object{"limit": "100 1h", "algorithm": "fixed_window", "durable": true}},
	{"calendar", 100, 0, object{"limit": "100 1mo calendar", "algorithm": "fixed_window"}},
	{"sliding", 100, 0, object{"limit": "100 1h"}},
	{"log", 100, 0, object{"limit": "100 1h", "algorithm": "sliding_log"}},
	{"bucket", 100, 0, object{"limit": "100 1h", "algorithm": "token_bucket"}},
	{"small", 7, 0, object{"limit": "7 1h", "algorithm": "fixed_window"}},
	{"gcra", 10, 10, object{"limit": "600 1m", "burst": "10", "algorithm": "gcra"}},
	{"costly", 50, 0, object{"limit": "100 1h", "algorithm": "fixed_window", "cost": "2"}},
}

// localProxies start n proxies, Caddy and Traefik in turn.
func localProxies(t *testing.T, n int, dsn string) (all []proxy) {
	t.Helper()
	for i := range n {
		name := fmt.Sprint("proxy", i)
		var routes []route
		for _, l := range localLimits {
			settings := object{"prefix": "local-" + l.name, "onError": "local", "timeout": "5s", "key": "all", "nodeName": name}
			maps.Copy(settings, l.limit)
			routes = append(routes, route{"/" + l.name, "", settings})
		}
		if i%2 == 1 {
			tr := startTraefik(t, routes, "DATABASE_URL="+dsn)
			all = append(all, proxy{tr.Process, tr.url})
			continue
		}
		address := harness.FreeAddress(t)
		config := harness.Replace(t, caddyfile(address, dsn, routes), "pg_ratelimit {", "pg_ratelimit {\n\t\tnode_name "+name)
		c := launchConfig(t, buildCaddy(t), address, config)
		c.AwaitAddress(t, address)
		all = append(all, proxy{c.Process, c.url})
	}
	return all
}

// localCounts are the requests that passed, by limit.
type localCounts struct {
	mu     sync.Mutex
	passed map[string]float64
	wrong  map[string]int // answers other than 200 and 429
	slow   time.Duration
}

// localLoad sends requests to all limits of all proxies in turn.
func localLoad(ctx context.Context, proxies []proxy, requests int, every time.Duration) *localCounts {
	c := &localCounts{passed: map[string]float64{}, wrong: map[string]int{}}
	harness.Run(ctx, harness.Load{Clients: 20, Requests: requests, Every: every,
		Request: func(i int) *http.Request {
			return harness.Get(proxies[i%len(proxies)].url + "/" + localLimits[i/len(proxies)%len(localLimits)].name)
		},
		Answered: func(i int, r harness.Reply) {
			c.mu.Lock()
			defer c.mu.Unlock()
			switch {
			case r.Status == http.StatusOK:
				c.passed[localLimits[i/len(proxies)%len(localLimits)].name]++
			case r.Status != http.StatusTooManyRequests:
				c.wrong[fmt.Sprint(r.Status, " ", r.Err)]++
			}
			c.slow = max(c.slow, r.Took)
		}})
	return c
}

// TestProxiesLimitThemselves while Postgres is away: all together admit what the limits have left. Each may admit one more,
// because its share is rounded up, and one that another proxy admitted since its own last decision. After that,
// durable limits know what was admitted.
func TestProxiesLimitThemselves(t *testing.T) {
	const n = 3
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	proxies := localProxies(t, n, dsn)
	conn := cluster.Connect(t, dsn)
	registered := func(since time.Time) func() bool {
		return func() bool {
			count := 0
			err := conn.QueryRow(t.Context(), "SELECT count(*) FROM rate_limit_nodes WHERE seen > $1", since).Scan(&count)
			return err == nil && count == n
		}
	}
	await(t, "all proxies to be in the registry", registered(time.Time{}))
	await(t, "all proxies to know of the others", registered(time.Now()))

	const spent = 40 // of each quota of 100
	before := localLoad(t.Context(), proxies, spent*len(localLimits)/n*n, 0)
	conn.Close(t.Context())
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), *localOutage)
	defer cancel()
	during := localLoad(ctx, proxies, 0, min(*localOutage/time.Duration(150*len(localLimits)), 4*time.Millisecond))
	lasted := time.Since(began)
	for _, wrong := range []map[string]int{before.wrong, during.wrong} {
		if len(wrong) > 0 {
			t.Errorf("answers other than 200 and 429: %v", wrong)
		}
	}
	for _, p := range proxies {
		p.AwaitLog(t, fmt.Sprintf("limits by itself, at %.3g %% of each limit", 100/float64(n)))
		a := harness.Ask(t, harness.Get(p.url+"/fixed"))
		if a.Status != http.StatusTooManyRequests || a.Header.Get("X-RateLimit-Limit") != "100" || a.Header.Get("X-RateLimit-Remaining") != "0" || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s, without a database: %d %v", p.url, a.Status, a.Header)
		}
	}
	for _, l := range localLimits {
		had := l.quota + l.each*lasted.Seconds()
		got := during.passed[l.name]
		if l.each == 0 {
			got += before.passed[l.name]
		}
		t.Logf("%s: %v before, %v during %v: %v of %.1f", l.name, before.passed[l.name], during.passed[l.name], lasted.Round(time.Millisecond), got, had)
		if got > had+2*float64(n) {
			t.Errorf("%s: %v passed of %v", l.name, got, had)
		}
		if got < 0.9*(had-l.quota*min(l.each, 1)) {
			t.Errorf("%s: only %v passed of %v", l.name, got, had)
		}
	}
	t.Logf("the slowest answer took %v", during.slow)

	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		p.AwaitLog(t, "limits are exact again")
	}
	charged := cluster.Query[float64](t, dsn, "SELECT count FROM rate_limit_durable WHERE prefix = 'local-fixed'")
	// What was under way as the database went may have been charged, and is not charged again.
	if admitted := min(100, before.passed["fixed"]+during.passed["fixed"]); charged > admitted || charged < admitted-float64(n) {
		t.Errorf("%v are charged of %v that were admitted", charged, admitted)
	}
	if shown := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_nodes WHERE local_until > local_from"); shown != n {
		t.Errorf("the registry shows %d proxies that have limited by themselves", shown)
	}
}
