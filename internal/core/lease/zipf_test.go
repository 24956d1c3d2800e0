package lease_test

import (
	"math"
	"math/rand"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestHalfOfAZipfLoadIsDecidedInMemory: of 25,000 requests a second for a million keys by Zipf's
// law, about half are for keys with few requests a second. They ask the database; the others
// hardly do. Rows are those of all statements: of requests, renewals and returns.
func TestHalfOfAZipfLoadIsDecidedInMemory(t *testing.T) {
	const (
		keys      = 1e6
		batchTime = 2000 // microseconds
		perBatch  = 50
	)
	now := int64(1)
	leases := lease.New(lease.Options{Max: 10000, Horizon: time.Second, Clock: func() int64 { return now }})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.SlidingWindow, Events: 1e8, Window: time.Hour, Lease: 0.05}
	random := rand.New(rand.NewSource(1))
	requests, leased, rows := 0, 0, 0
	for batch := 0; batch < 2000; batch++ {
		if batch == 500 {
			requests, leased, rows = 0, 0, 0 // a second is over
		}
		waiting := map[string]*lease.Ask{}
		for i := 0; i < perBatch; i++ {
			now += batchTime / perBatch
			key := strconv.Itoa(int(math.Pow(keys, random.Float64())))
			requests++
			if lease.Take(leases, []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}}, make([]ratelimit.Decision, 1)) {
				leased++
			} else {
				waiting[key] = nil
			}
		}
		if batch%50 == 0 {
			lease.Sweep(leases)
		}
		asks, returns := lease.Work(leases, false)
		for i := range asks {
			waiting[asks[i].Row.Key] = &asks[i]
		}
		rows += len(waiting) + len(returns)
		for key, ask := range waiting {
			a := lease.Answer{Row: lease.RowID{Prefix: "p", Key: key}, Limit: l, Free: 9e7, Ask: ask}
			if ask != nil {
				a.Leased = lease.Units{N: ask.N, Ends: now + lease.MostLife(leases, l), Claim: 1}
			}
			lease.Update(leases, &a)
		}
	}
	share, cost := float64(leased)/float64(requests), float64(rows)/float64(requests)
	t.Logf("%.3f of the requests are decided in memory; %.3f rows a request", share, cost)
	if share < 0.45 || cost > 0.61 {
		t.Errorf("%.3f of the requests are decided in memory, want at least 0.45; %.3f rows a request, want at most 0.61", share, cost)
	}
}
