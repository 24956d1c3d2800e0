package engine_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasedHit is a hit on a limit of 30,000 per hour with a lease.
var leasedHit = ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "leased", Events: 30000, Window: time.Hour,
	Lease: 0.05, Durable: true}, Key: "k", Cost: 1}

// longLeaseOptions make leases last longer than a test, even on a busy machine.
var longLeaseOptions = engine.Options{CleanupProbability: -1, LeaseHorizon: time.Minute}

// chargedUnits returns the charged units of a hit's row, read by another store.
func chargedUnits(t *testing.T, s *testDB, h ratelimit.Hit) int64 {
	t.Helper()
	return h.Limit.Capacity() - remaining(t, s.openEngine(bareOptions), h)
}

// A charge for a lease may wait until Close, or until the row is charged again, 2 seconds later. After Close,
// the row has no other charges than those of requests.
func TestCloseRefundsWaitingCharge(t *testing.T) {
	t.Parallel()
	for _, repeated := range []bool{false, true} {
		s := newTestDB(t)
		store := s.openEngine(longLeaseOptions)
		passed := int64(1)
		store.AddSettlement(settlementOf(leasedHit, takeOne(t, store, leasedHit), 0)) // later calls wait, too
		await.Within(t, testTimeout, "a lease with one unit left", func() bool {
			passed++
			return takeAll(t, store, leasedHit) && store.Stats()[engine.Leased] > 100 &&
				store.Stats()[engine.LeasedUnits] == 1
		})
		await.Within(t, testTimeout, "a charge that waits", func() bool { return store.Waiting() > 0 })
		if repeated {
			time.Sleep(2100 * time.Millisecond)
			for ; store.Waiting() > 0; passed++ {
				takeAll(t, store, leasedHit)
			}
		}
		store.Close()
		check.Equal(t, "charged units", chargedUnits(t, s, leasedHit), passed)
	}
}

// A store with leases passes the conformance suite. One driver suffices, because leases do not depend on the
// driver.
func TestConformanceWithLeases(t *testing.T) {
	dsn := cluster.Open(t)
	conformance.Store(t, func(t testing.TB) ratelimit.Store {
		o := engine.Options{OnError: func(err error) { t.Errorf("reported: %v, want nothing", err) }}
		return conformance.Leasing{Store: openStore(t, drivers.All["pgwire"](t, dsn), o, nil)}
	})
}
