package reports

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// inTurn returns requests to this site, in turn with the site other of the other proxy if that is not "".
func (v *visit) inTurn(other string, headers func(i int) []string) func(i int) *http.Request {
	return func(i int) *http.Request {
		var more []string
		if headers != nil {
			more = headers(i / 2)
		}
		p, id := v.proxy, v.id
		if other != "" && i%2 == 1 {
			p, id = v.other, other
		}
		return harness.Get("http://"+p.trusted+"/", append(more, "Host", hostOf(id))...)
	}
}

// load sends requests of inTurn at once, and returns the statuses.
func (v *visit) load(clients, requests int, other string, headers func(i int) []string) string {
	return harness.Run(v.Context(), harness.Load{Clients: clients, Requests: requests,
		Request: v.inTurn(other, headers)}).String()
}

// inThreeZones are zones that count by the headers A, B and C, in an order.
func inThreeZones(order ...int) (zones []string) {
	for _, i := range order {
		zones = append(zones, fmt.Sprintf("prefix r65-%d\nkey {header.%c}\n", i, '@'+i)+
			"limit 100000 1h\nalgorithm fixed_window")
	}
	return zones
}

// inOppositeOrders checks that requests in opposite orders met no deadlock, and that counters equal the
// requests that passed.
func inOppositeOrders(v *visit) {
	const requests = 4000
	got := v.load(32, requests, "r65-a-caddy", func(i int) []string {
		return []string{"A", fmt.Sprint(i % 20), "B", fmt.Sprint(i % 19), "C", fmt.Sprint(i % 17)}
	})
	check.Equal(v, "the statuses", got, fmt.Sprintf("200×%d", requests))
	check.Equal(v, "the counters", v.countOf("^r65-"), 3*requests)
	check.Equal(v, "the deadlocks", cluster.Query[int](v, v.dsn, `SELECT deadlocks::int
		FROM pg_stat_database WHERE datname = current_database()`), 0)
}

// inSeconds is a zone of R64 in both proxies, with a window that a test can await.
const inSeconds = "prefix r64\nkey all\nalgorithm fixed_window\nlimit 10 5s"

// allAtOnce checks that 10 of 200 first requests of a key pass in both proxies, and none of 50 more, and that
// ten pass after the window.
func allAtOnce(v *visit) {
	began := time.Now()
	first := v.load(32, 200, "r64-a-caddy", nil)
	more := v.load(32, 50, "r64-a-caddy", nil)
	count := v.countOf("^r64$")
	if time.Since(began) < 5*time.Second && (first != "200×10 429×190" || more != "429×50" || count != 10) {
		v.Errorf("%s, then %s, with the counter %d, want 200×10 429×190, then 429×50 and 10", first,
			more, count)
	}
	time.Sleep(5 * time.Second) // the window
	if out := v.command("get", "r64", "all"); !strings.Contains(out, "10") {
		v.Errorf("get says %q after the window, want the full quota of 10", out)
	}
	check.Equal(v, "the statuses after the window", v.load(1, 10, "", nil), "200×10")
}

// inABurst checks that 26 of 60 requests at once pass, and one more for each 0.2 s. Later ten pass.
func inABurst(v *visit) {
	began := time.Now()
	r := harness.Run(v.Context(), harness.Load{Clients: 60, Requests: 60, Request: v.inTurn("", nil)})
	most := 26 + int(time.Since(began)/(200*time.Millisecond)) + 1
	if n := r.Status[200]; n < 26 || n > most || r.Failed > 0 {
		v.Errorf("%v, want 26 to %d that pass", r, most)
	}
	time.Sleep(2 * time.Second) // in which ten more are admitted
	check.Equal(v, "the statuses two seconds later", v.load(1, 10, "", nil), "200×10")
}
