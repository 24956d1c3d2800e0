package integration

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// kindRoutes are two paths for each algorithm on each table: one on which a request costs
// 1, and one under /costs, on which a header gives the cost. Another header is the key.
func kindRoutes() []caddyRoute {
	var routes []caddyRoute
	for _, a := range algorithms {
		for _, table := range tables {
			durable := "durable " + onOff(table.durable)
			algorithm := "algorithm " + a.name
			path := a.name + "/" + table.name
			routes = append(routes,
				caddyRoute{"/" + path, []string{exactly(a.name, algorithm, "limit "+a.limit, durable, "key {header.X-Key}")}},
				caddyRoute{"/costs/" + path, []string{exactly(a.name+"_costs", algorithm, "limit "+a.limit, durable, "key {header.X-Key}", "cost {header.X-Cost}")}})
		}
	}
	return routes
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// TestTwoCaddiesShareALimit sends requests from 64 clients to two processes on
// one database, for each algorithm on each table.
func TestTwoCaddiesShareALimit(t *testing.T) {
	dsn := cluster.Open(t)
	pair := startCaddies(t, 2, dsn, kindRoutes()...)
	forEachKind(t, func(t *testing.T, algorithm, _ string, durable bool) {
		path := "/" + algorithm + "/" + tables[0].name
		if durable {
			path = "/" + algorithm + "/" + tables[1].name
		}
		run := func(requests int, request func(i int) *http.Request) *harness.Result {
			t.Helper()
			result := harness.Run(t.Context(), harness.Load{Clients: 64, Requests: requests, Request: request})
			if err := result.Err(); err != nil {
				t.Fatal(err)
			}
			if n := result.Status[200] + result.Status[429]; n != requests {
				t.Fatalf("%d of %d requests were not decided: %v", requests-n, requests, result)
			}
			return result
		}
		// To which of the two a request goes changes only after a round of all
		// keys and costs, so that both see all of them.
		to := func(i, round int) string { return pair[i/round%2].url }

		one := run(1000, func(i int) *http.Request { return harness.Get(to(i, 1)+path, "X-Key", "one") })
		if one.Status[200] != quota || one.Status[429] != 1000-quota {
			t.Errorf("one key: %v; want %d×200 and %d×429", one, quota, 1000-quota)
		}
		for i, c := range pair {
			answer := harness.Ask(t, harness.Get(c.url+path, "X-Key", "one"))
			if answer.Status != 429 || answer.Header.Get("Retry-After") == "" || !strings.Contains(answer.Body, `"retryAfter":`) {
				t.Errorf("Caddy %d answers %d %v %s", i, answer.Status, answer.Header, answer.Body)
			}
		}

		const keys = 50
		many := run(keys*(quota+20), func(i int) *http.Request {
			return harness.Get(to(i, keys)+path, "X-Key", "many-"+strconv.Itoa(i%keys))
		})
		var admitted [keys]int
		for i := range many.Replies {
			if many.Replies[i].Status == 200 {
				admitted[i%keys]++
			}
		}
		for key, n := range admitted {
			if n != quota {
				t.Errorf("key %d of %d: %d×200, want %d", key, keys, n, quota)
			}
		}

		// There are more requests of cost 1 than can pass. So some of them are refused,
		// and the whole quota is used.
		const costs = 5
		mixed := run(1000, func(i int) *http.Request {
			return harness.Get(to(i, costs)+"/costs"+path, "X-Key", "mixed", "X-Cost", strconv.Itoa(i%costs+1))
		})
		sum := 0
		for i := range mixed.Replies {
			if mixed.Replies[i].Status == 200 {
				sum += i%costs + 1
			}
		}
		if sum != quota {
			t.Errorf("costs 1 to %d: %d admitted, want %d", costs, sum, quota)
		}
	})
	checkNoDeadlock(t, dsn)
	for _, c := range pair {
		if lines := c.complaints(); len(lines) > 0 {
			t.Errorf("%d complaints in a log, such as %s", len(lines), lines[0])
		}
	}
}
