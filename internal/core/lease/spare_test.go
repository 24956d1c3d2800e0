package lease_test

import (
	"hash/maphash"
	"math/rand"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestMostRequestsOfThePluginUseSpareUnits: with 1,000 busy keys and the plugin's horizon, hardly a
// request needs the queue. A request in the queue takes the interpreter about as long as one that asks
// the database.
func TestMostRequestsOfThePluginUseSpareUnits(t *testing.T) {
	const (
		horizon  = 4 * time.Second
		apart    = 115 // microseconds between two requests
		perBatch = 20
	)
	now := int64(1)
	leases := lease.New(lease.Options{Max: 10000, Horizon: horizon, Clock: func() int64 { return now }})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.SlidingWindow, Events: 1e8, Window: time.Hour, Lease: 0.05}
	random := rand.New(rand.NewSource(1))
	requests, spare := 0, 0
	for swept := now; now < 15000000; {
		waiting := map[string]*lease.Ask{}
		for range perBatch {
			now += apart
			key := strconv.Itoa(random.Intn(1000))
			counts := now > 5000000 // the leases have got their size
			if counts {
				requests++
			}
			shard := leases.Shards[maphash.String(leases.Seed, key)%lease.ShardCount]
			held := shard.Rows[lease.RowID{Prefix: "p", Key: key}]
			if held != nil && (held.Spare > 0 && time.Duration(now)*time.Microsecond < held.SpareEnds || lease.Extend(leases, shard, held, 1)) {
				held.Spare--
				if counts {
					spare++
				}
			} else if !lease.Take(leases, []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}}, make([]ratelimit.Decision, 1)) {
				waiting[key] = nil
			}
		}
		if now-swept > int64(horizon/time.Microsecond)/8 {
			swept = now
			lease.Sweep(leases)
		}
		asks, _ := lease.Work(leases, false)
		for i := range asks {
			waiting[asks[i].Row.Key] = &asks[i]
		}
		for key, ask := range waiting {
			a := lease.Answer{Row: lease.RowID{Prefix: "p", Key: key}, Limit: l, Free: 9e7, Ask: ask}
			if ask != nil {
				a.Leased = lease.Units{N: ask.N, Ends: now + lease.MostLife(leases, l), Claim: 1}
			}
			lease.Update(leases, &a)
		}
	}
	share := float64(spare) / float64(requests)
	t.Logf("%.3f of the requests use spare units", share)
	if share < 0.99 {
		t.Errorf("%.3f of the requests use spare units, want at least 0.99", share)
	}
}
