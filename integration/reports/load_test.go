package reports

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// load sends requests to a site at once.
func (p *proxy) load(id string, clients, requests int, headers func(i int) []string) *harness.Result {
	return harness.Run(context.Background(), harness.Load{Clients: clients, Requests: requests,
		Request: func(i int) *http.Request {
			var more []string
			if headers != nil {
				more = headers(i)
			}
			return harness.Get("http://"+p.trusted+"/", append(more, "Host", hostOf(id))...)
		}})
}

// inThreeZones are zones that count by the headers A, B and C, in an order.
func inThreeZones(order ...int) (zones []string) {
	for _, i := range order {
		zones = append(zones, fmt.Sprintf("prefix r65-%d\nkey {header.%c}\n", i, '@'+i)+
			"limit 100000 1h\nalgorithm fixed_window")
	}
	return zones
}

// atOnce sends requests to the site of this proxy and to that of the other one at once.
func (p *proxy) atOnce(id, other string, requests int, headers func(i int) []string) *harness.Result {
	both := &harness.Result{Status: map[int]int{}}
	results := make(chan *harness.Result, 2)
	go func() { results <- p.load(id, 16, requests/2, headers) }()
	go func() { results <- p.other.load(other, 16, requests/2, headers) }()
	for range 2 {
		r := <-results
		for status, n := range r.Status {
			both.Status[status] += n
		}
		both.Failed += r.Failed
	}
	return both
}

// inOppositeOrders checks that requests in opposite orders met no deadlock, and that counters equal the
// requests that passed.
func inOppositeOrders(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	const requests = 4000
	r := p.atOnce(id, "r65-a-caddy", requests, func(i int) []string {
		return []string{"A", fmt.Sprint(i % 20), "B", fmt.Sprint(i % 19), "C", fmt.Sprint(i % 17)}
	})
	if got := r.String(); got != fmt.Sprintf("200×%d", requests) {
		t.Errorf("%s: %s, want 200×%d", id, got, requests)
	}
	if n := countOf(t, p, "^r65-"); n != 3*requests {
		t.Errorf("%s: the counters are %d, want %d", id, n, 3*requests)
	}
	if n := cluster.Query[int](t, p.dsn, `SELECT deadlocks::int FROM pg_stat_database
		WHERE datname = current_database()`); n != 0 {
		t.Errorf("%s: %d deadlocks, want none", id, n)
	}
}

// inSeconds is a zone of R64 in both proxies, with a window that a test can await.
const inSeconds = "prefix r64\nkey all\nalgorithm fixed_window\nlimit 10 5s"

// allAtOnce checks that 10 of 200 first requests of a key pass in both proxies, and none of 50 more, and that
// ten pass after the window.
func allAtOnce(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	began := time.Now()
	first := p.atOnce(id, "r64-a-caddy", 200, nil).String()
	more := p.atOnce(id, "r64-a-caddy", 50, nil).String()
	count := countOf(t, p, "^r64$")
	if time.Since(began) < 5*time.Second && (first != "200×10 429×190" || more != "429×50" || count != 10) {
		t.Errorf("%s: %s, then %s, with the counter %d, want 200×10 429×190, then 429×50 and 10", id, first,
			more, count)
	}
	time.Sleep(5 * time.Second) // the window
	if out := p.command(t, "get", "r64", "all"); !strings.Contains(out, "10") {
		t.Errorf("%s: get says %q after the window, want the full quota of 10", id, out)
	}
	if got := p.load(id, 1, 10, nil).String(); got != "200×10" {
		t.Errorf("%s: after the window %s, want 200×10", id, got)
	}
}

// inABurst checks that 26 of 60 requests at once pass, and one more for each 0.2 s. Later ten pass.
func inABurst(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	began := time.Now()
	r := p.load(id, 60, 60, nil)
	most := 26 + int(time.Since(began)/(200*time.Millisecond)) + 1
	if n := r.Status[200]; n < 26 || n > most || r.Failed > 0 {
		t.Errorf("%s: %v, want 26 to %d that pass", id, r, most)
	}
	time.Sleep(2 * time.Second) // in which ten more are admitted
	if got := fmt.Sprint(p.load(id, 1, 10, nil)); got != "200×10" {
		t.Errorf("%s: two seconds later %s, want 200×10", id, got)
	}
}
