package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasable are the algorithms that allow leases.
var leasable = []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow, ratelimit.TokenBucket}

// leasedHit is a hit on the only key of a limit with a lease, 30,000 an hour.
func leasedHit(a ratelimit.Algorithm, durable bool) ratelimit.Hit {
	l := &ratelimit.Limit{Prefix: fmt.Sprint(a, durable), Algorithm: a, Events: 30000, Window: time.Hour, Lease: 0.05, Durable: durable}
	return ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
}

// lasting makes leases outlast a test on a machine that is busy with others: no units end by themselves.
var lasting = engine.Options{CleanupProbability: -1, LeaseHorizon: time.Minute}

// eachLeased runs a test with each algorithm that allows leases, without -short on each table.
func eachLeased(t *testing.T, test func(t *testing.T, s *site, h ratelimit.Hit)) {
	for _, a := range leasable {
		for _, durable := range []bool{false, true} {
			if testing.Short() && durable != (a == ratelimit.FixedWindow) {
				continue
			}
			t.Run(fmt.Sprint(a, durable), func(t *testing.T) {
				s := newSite(t)
				test(t, s, leasedHit(a, durable))
				s.nothingReported()
			})
		}
	}
}

// hammerLeased sends hits until so many were decided by a lease, and returns how many passed.
func hammerLeased(t *testing.T, store counting, leased int64, hits ...ratelimit.Hit) int64 {
	t.Helper()
	passed := int64(0)
	before := store.Stats().Leased
	for until := time.Now().Add(20 * time.Second); store.Stats().Leased < before+leased; {
		if time.Now().After(until) {
			t.Fatalf("only %d of %d requests were decided by a lease", store.Stats().Leased-before, passed)
		}
		if !passes(t, store, hits...) {
			t.Fatal("a request was refused")
		}
		passed++
	}
	return passed
}

// used is what the row of a hit was charged, as another process sees it.
func used(t *testing.T, s *site, h ratelimit.Hit) int64 {
	t.Helper()
	return h.Limit.Capacity() - left(t, s.store(without), h)
}

// awaitUnits waits until no units are on their way between the rows of hits and the store: the rows were
// charged what has passed and what the store holds. Headers are exact then, until units end. awaitUnits returns how many are held.
func awaitUnits(t *testing.T, s *site, store counting, passed int64, hits ...ratelimit.Hit) (held int64) {
	t.Helper()
	await.Within(t, longTime, "the units on their way to arrive", func() bool {
		held = store.Stats().LeasedUnits
		charged := int64(0)
		for _, h := range hits {
			charged += used(t, s, h)
		}
		return charged == passed+held && store.Stats().LeasedUnits == held
	})
	return held
}

// TestABusyKeyIsDecidedInMemory, and its headers say what is left, as if each request had asked
// the database.
func TestABusyKeyIsDecidedInMemory(t *testing.T) {
	eachLeased(t, func(t *testing.T, s *site, h ratelimit.Hit) {
		store := s.store(lasting)
		before := takeOne(t, store, h)
		passed, leased, wrong := int64(1), 0, int64(0)
		for leased < 1000 {
			if passed == 20_000 {
				t.Fatalf("only %d of %d hits were decided by a lease", leased, passed)
			}
			d := takeOne(t, store, h)
			want := before.Remaining - 1
			if d.Remaining != want && d.Remaining >= want-1500 && d.Remaining <= want+1500 {
				wrong++ // units are on their way
				d.Remaining = want
			}
			if !d.Allowed || d.Limit != 30000 || d.Remaining != want || d.Reset.Sub(before.Reset).Abs() > time.Second {
				t.Fatalf("hit %d: %+v after %+v", passed, d, before)
			}
			if d.Source == ratelimit.FromLease {
				leased++
			}
			before = d
			passed++
		}
		if wrong > passed/2 {
			t.Errorf("%d of %d answers said that more or less is left than is", wrong, passed)
		}
		awaitUnits(t, s, store, passed, h)
		peek := h
		peek.Peek = true
		// While units go back, a look can say that less is left.
		await.Within(t, longTime, "a peek to tell what is left", func() bool {
			d := takeOne(t, store, peek)
			return d.Allowed && d.Remaining == before.Remaining
		})
		if got := used(t, s, h); got < passed || got > passed+1500 {
			t.Errorf("%d passed, and %d were charged", passed, got)
		}
	})
}

// TestLeasesAreBounded by half of MaxRows, and off with NoLeases.
func TestLeasesAreBounded(t *testing.T) {
	s := newSite(t)
	o := lasting
	o.MaxRows = 6
	store := s.store(o)
	o.NoLeases = true
	off := s.store(o)
	h := leasedHit(ratelimit.FixedWindow, false)
	sources := map[string]bool{}
	for i := 0; i < 2000; i++ {
		h.Key = fmt.Sprint(i % 10)
		if takeOne(t, store, h).Source == ratelimit.FromLease {
			sources[h.Key] = true
		}
		if i < 100 && takeOne(t, off, h).Source != ratelimit.FromPostgres {
			t.Error("a store without leases has one")
		}
	}
	if len(sources) == 0 || len(sources) > 3 {
		t.Errorf("%d keys had leases, want 1 to 3", len(sources))
	}
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
		return &leasing{changing{Store: store, change: lease, limits: map[*ratelimit.Limit]*ratelimit.Limit{}}}
	})
}

// quick makes leases short, so that a test sees them end.
var quick = engine.Options{CleanupProbability: -1, LeaseHorizon: 100 * time.Millisecond}

// TestUnusedUnitsGoBack when the key is idle, and when the store is closed: the row then says what
// was admitted, exactly.
func TestUnusedUnitsGoBack(t *testing.T) {
	eachLeased(t, func(t *testing.T, s *site, h ratelimit.Hit) {
		store, other := s.store(quick), s.store(without)
		passed := hammerLeased(t, store, 500, h)
		await.Within(t, longTime, "the units to go back", func() bool { return store.Stats().LeasedUnits == 0 && left(t, other, h) == 30000-passed })
		passed += hammerLeased(t, store, 500, h)
		store.Close()
		if got := used(t, s, h); got != passed {
			t.Errorf("%d passed, and %d were charged after Close", passed, got)
		}
	})
}
