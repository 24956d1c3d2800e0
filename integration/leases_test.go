package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Eight Caddys with leases share a limit of 1,000 for each key. While they run, clients that go on get at
// least 980. After two are killed, clients of the others get all but the 5 % that each of the two may have
// held. After the others stop, the charge of a key equals the admitted requests and the units of the killed
// processes.
func TestProcessesWithLeasesShareLimit(t *testing.T) {
	dsn := cluster.Open(t)
	limited := route{path: "/", limit: decideAlways(object{"prefix": "leased", "key": "{header.X-Key}",
		"limit": "1000 1h", "algorithm": "fixed_window", "lease": "5%"})}
	var proxies []*proxy
	for range 8 {
		proxies = append(proxies, startCaddy(t, dsn, limited))
	}
	charged := func(key string) int {
		return int(cluster.Query[int64](t, dsn, "SELECT sum(count)::bigint FROM rate_limit_ephemeral WHERE "+
			"prefix = 'leased' AND key = $1", key))
	}
	cases := []struct {
		key   string
		ended []*proxy // by end, after 500 requests
		end   func(*proxy) error
		least int // the number of requests to admit
		lost  int // the most units that are charged and not used
	}{
		{key: "all run", least: 980},
		{"two are killed", proxies[:2], func(p *proxy) error { return p.Kill() }, 900, 100},
		{"all stop", proxies[2:], func(p *proxy) error { return p.Stop() }, 500, 0},
	}
	admitted, held := map[string]int{}, 0 // held is the sum of the unused units after some requests
	for _, c := range cases {
		for range 10 {
			admitted[c.key] += admittedBy(t, proxies, c.key, 50)
			held += charged(c.key) - admitted[c.key]
		}
		check.Equal(t, c.key+": admitted of 500 requests", admitted[c.key], 500)
		for _, p := range c.ended {
			if err := c.end(p); err != nil {
				t.Error(err)
			}
		}
		proxies = proxies[len(c.ended):]
		for passed := len(proxies); passed > 0 && admitted[c.key] <= 1000; { // until all are refused
			await(t, c.key+": the units that can be admitted", func() bool {
				passed = admittedBy(t, proxies, c.key, 48)
				admitted[c.key] += passed
				return admitted[c.key] >= c.least
			})
		}
	}
	if held == 0 {
		t.Error("no Caddy held units, want leases")
	}
	for _, c := range cases {
		if n := charged(c.key); n > 1000 || n < admitted[c.key] || n > admitted[c.key]+c.lost {
			t.Errorf("%s: %d units are charged, want the %d admitted, and at most %d lost", c.key, n,
				admitted[c.key], c.lost)
		}
	}
}

// admittedBy sends requests of a key to the proxies in turn, at a rate at which the quota lasts for several
// horizons of leases, and returns how many are admitted.
func admittedBy(t *testing.T, proxies []*proxy, key string, requests int) int {
	t.Helper()
	r := harness.Run(t.Context(), harness.Load{Clients: 16, Requests: requests, Every: 5 * time.Millisecond,
		Request: func(i int) *http.Request {
			return harness.Get(proxies[i%len(proxies)].url, "X-Key", key)
		}})
	check.OK(t, r.Err())
	return r.Status[http.StatusOK]
}
