package engine_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasedHit is a hit on the only key of a limit with a lease, 30,000 an hour.
var leasedHit = ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "leased", Events: 30000, Window: time.Hour,
	Lease: 0.05, Durable: true}, Key: "k", Cost: 1}

// lasting makes leases outlast a test on a machine that is busy with others: no units end by themselves.
var lasting = engine.Options{CleanupProbability: -1, LeaseHorizon: time.Minute}

// holdUnits sends hits until the store has a lease with units, and the row was charged for the hits and for
// these units: no charge or refund is under way.
func holdUnits(t *testing.T, s *site, store counting) {
	t.Helper()
	passed := int64(0)
	for until := time.Now().Add(20 * time.Second); store.Stats()[engine.Leased] < 10; passed++ {
		if time.Now().After(until) || !passes(t, store, leasedHit) {
			t.Fatalf("of %d requests, %d were decided by a lease", passed, store.Stats()[engine.Leased])
		}
	}
	await.Within(t, longTime, "the units on their way to arrive", func() bool {
		held := store.Stats()[engine.LeasedUnits]
		return used(t, s, leasedHit) == passed+held && store.Stats()[engine.LeasedUnits] == held
	})
	if store.Stats()[engine.LeasedUnits] == 0 {
		t.Fatal("no units are held")
	}
}

// used returns the charges of the row of a hit, as another process sees it.
func used(t *testing.T, s *site, h ratelimit.Hit) int64 {
	t.Helper()
	return h.Limit.Capacity() - left(t, s.store(without), h)
}

// leasing is a store that gives each limit a lease that can have one.
type leasing struct{ changing }

// LosesUnits is for conformance.
func (*leasing) LosesUnits() {}

// TestConformanceWithLeases needs one driver: leases are decided above it.
func TestConformanceWithLeases(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store {
		o := engine.Options{OnError: func(err error) { t.Errorf("reported: %v", err) }}
		lease := func(l *ratelimit.Limit) {
			leased := *l
			leased.Lease = 0.5
			if leased.Validate() == nil {
				*l = leased
			}
		}
		store := newStore(t, drivers.All["pgwire"](t, cluster.Open(t)), o)
		return &leasing{changing{Store: store, change: lease,
			limits: map[*ratelimit.Limit]*ratelimit.Limit{}}}
	})
}
