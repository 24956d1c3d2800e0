package reports

import (
	"context"
	"fmt"
	"net/http"
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

// inOppositeOrders checks that no request met a deadlock, and that counters equal the requests that passed.
func inOppositeOrders(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	const requests = 2000
	before := countOf(t, p, "^r65-")
	r := p.load(id, 16, requests, func(i int) []string {
		return []string{"A", fmt.Sprint(i % 20), "B", fmt.Sprint(i % 19), "C", fmt.Sprint(i % 17)}
	})
	if got := fmt.Sprint(r, " ", r.Err()); got != fmt.Sprintf("200×%d <nil>", requests) {
		t.Errorf("%s: %s, want 200×%d", id, got, requests)
	}
	if n := countOf(t, p, "^r65-") - before; n != 3*requests {
		t.Errorf("%s: the counters grew by %d, want %d", id, n, 3*requests)
	}
	if n := cluster.Query[int](t, p.dsn, `SELECT deadlocks::int FROM pg_stat_database
		WHERE datname = current_database()`); n != 0 {
		t.Errorf("%s: %d deadlocks, want none", id, n)
	}
}

// allAtOnce checks that 10 of 250 first requests of a key pass.
func allAtOnce(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	if got := fmt.Sprint(p.load(id, 50, 250, nil)); got != "200×10 429×240" {
		t.Errorf("%s: %s, want 200×10 429×240", id, got)
	}
	if n := countOf(t, p, "^"+id); n != 10 {
		t.Errorf("%s: the counter is %d, want 10", id, n)
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
