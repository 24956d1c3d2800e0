package engine_test

import (
	"context"
	"sync"
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

// holdUnits sends hits until leases have decided 10 of them. It then waits until no charge or refund is in
// flight: the row's charge is then the sum of the hits and the unused units. At least one unit must be left.
func holdUnits(t *testing.T, s *testDB, store storeWithStats) {
	t.Helper()
	passed := int64(0)
	await.Within(t, testTimeout, "10 requests decided by a lease", func() bool {
		passed++
		return takeAll(t, store, leasedHit) && store.Stats()[engine.Leased] >= 10
	})
	await.Within(t, testTimeout, "the units in flight to arrive", func() bool {
		leased := store.Stats()[engine.LeasedUnits]
		return leased > 0 && chargedUnits(t, s, leasedHit) == passed+leased &&
			store.Stats()[engine.LeasedUnits] == leased
	})
}

// chargedUnits returns the charged units of a hit's row, read by another store.
func chargedUnits(t *testing.T, s *testDB, h ratelimit.Hit) int64 {
	t.Helper()
	return h.Limit.Capacity() - remaining(t, s.openEngine(bareOptions), h)
}

// A charge for a lease may wait until Close, or until the row is charged again, 2 seconds later. After Close,
// the row has no other charges than those of requests.
func TestCloseRefundsWaitingCharge(t *testing.T) {
	for _, again := range []bool{false, true} {
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
		if again {
			time.Sleep(2100 * time.Millisecond)
			for ; store.Waiting() > 0; passed++ {
				takeAll(t, store, leasedHit)
			}
		}
		store.Close()
		check.Equal(t, "charged units", chargedUnits(t, s, leasedHit), passed)
	}
}

// leasingStore is a store that gives each limit a lease if it can have one.
type leasingStore struct{ limitChanger }

// LosesUnits implements conformance.LosesUnits.
func (*leasingStore) LosesUnits() {}

// A store with leases passes the conformance suite. One driver suffices, because leases do not depend on the
// driver.
func TestConformanceWithLeases(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store {
		o := engine.Options{OnError: func(err error) { t.Errorf("reported: %v, want nothing", err) }}
		lease := func(l *ratelimit.Limit) {
			leased := *l
			leased.Lease = 0.5
			if leased.Validate() == nil {
				*l = leased
			}
		}
		store := openStore(t, drivers.All["pgwire"](t, cluster.Open(t)), o, nil)
		return &leasingStore{limitChanger{Store: store, change: lease,
			limits: map[*ratelimit.Limit]*ratelimit.Limit{}}}
	})
}

// limitChanger is a store that replaces the limits of its hits by changed copies.
type limitChanger struct {
	ratelimit.Store
	change func(l *ratelimit.Limit)

	mu     sync.Mutex
	limits map[*ratelimit.Limit]*ratelimit.Limit // the changed copy of each limit
}

func (c *limitChanger) withChangedLimits(hits []ratelimit.Hit) []ratelimit.Hit {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := append([]ratelimit.Hit(nil), hits...)
	for i := range changed {
		l := changed[i].Limit
		if l != nil && c.limits[l] == nil {
			other := *l
			c.change(&other)
			c.limits[l] = &other
		}
		changed[i].Limit = c.limits[l]
	}
	return changed
}

func (c *limitChanger) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	return c.Store.Take(ctx, timeout, c.withChangedLimits(hits), decisions)
}

func (c *limitChanger) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return c.Store.Reset(ctx, timeout, c.withChangedLimits(hits))
}
