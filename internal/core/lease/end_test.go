package lease_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// busy is a limit with leases.
var busy = &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 30000,
	Window: 24 * time.Hour, Lease: 0.05}

// hitUntilHeld sends hits on a key until it has a lease with units.
func hitUntilHeld(rows *lease.Set, now int64, key string) {
	hits := []ratelimit.Hit{{Limit: busy, Key: key, Cost: 1}}
	for range 6 {
		found, passed := take(rows, hits, make([]ratelimit.Decision, 1))
		if passed || found[0] == nil {
			continue
		}
		_, n := lease.NextCharge(rows, found[0])
		view := algorithm.View{Limit: busy, Row: algorithm.Row{Start: 1e15}, Now: 1e15 + now, Free: 20000}
		lease.Update(rows, found[0], &lease.Answer{View: &view, Sent: now, Requested: n > 0, Units: n})
	}
}

// TestAllUnitsAreRefundedAtTheEnd, of however many leases. Keys beyond the half of the rows get no lease.
func TestAllUnitsAreRefundedAtTheEnd(t *testing.T) {
	const keys = 20000
	now := int64(1)
	back := int64(0)
	rows := lease.New(lease.Options{Max: 30000, Horizon: time.Hour, MinHits: 4,
		Clock:  func() int64 { return now },
		Refund: func(r lease.Refund) { back += r.N }})
	for i := range keys {
		hitUntilHeld(rows, now, fmt.Sprint(i))
	}
	held := lease.Stats(rows)
	if held.Leases > 15000 || held.Leases < 14000 || held.Units < held.Leases {
		t.Fatalf("%d keys have leases of %d units", held.Leases, held.Units)
	}
	lease.EndAll(rows)
	if back != held.Units || lease.Stats(rows) != (lease.Figures{Decided: held.Decided}) {
		t.Errorf("%d of %d units were refunded, and there are %+v", back, held.Units, lease.Stats(rows))
	}
}

// TestUnitsThatEndAreRefundedTogether checks Sweep. The refund of a request on a row refunds the units of the
// row first.
func TestUnitsThatEndAreRefundedTogether(t *testing.T) {
	for _, drop := range []string{"", "other", "a"} {
		now := int64(1)
		keys := ""
		rows := lease.New(lease.Options{Max: 10, Horizon: time.Second, MinHits: 4,
			Clock:  func() int64 { return now },
			Refund: func(r lease.Refund) { keys += r.Row.Key }})
		hitUntilHeld(rows, now, "a")
		hitUntilHeld(rows, now, "b")
		now += 1500000
		if keys != "" {
			t.Errorf("before Sweep, units of %q are refunded", keys)
		}
		lease.EndLease(rows, lease.RowOf(busy, drop))
		if (keys == "a") != (drop == "a") {
			t.Errorf("a refund on the row of %q has units of %q refunded", drop, keys)
		}
		lease.Sweep(rows)
		if lease.Stats(rows).Units != 0 {
			t.Errorf("after their end, units are held: %+v", lease.Stats(rows))
		}
		if keys != "ab" && keys != "ba" {
			t.Errorf("units of %q are refunded, want ab", keys)
		}
	}
}

// TestALeaseLivesOn checks that an answer to a hit extends the life of the remaining units.
func TestALeaseLivesOn(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow,
		ratelimit.TokenBucket} {
		w := newWorld(&ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 30000, Window: time.Hour,
			Lease: 0.05}, 1)
		p := w.processes[0]
		for range 12 {
			p.decide(1)
			w.time += 100000
		}
		before := w.held()
		w.time += 1400000 // the units have ended
		p.decide(1)
		d := make([]ratelimit.Decision, 1)
		_, passed := take(p.leases, []ratelimit.Hit{{Limit: w.limit, Key: "k", Cost: 1}}, d)
		if before == 0 || !passed || w.held() < before-1 {
			t.Fatalf("%v: of %d units, %d are held, %+v", a, before, w.held(), d[0])
		}
		if free, _ := algorithm.Of(w.limit).Peek(w.limit, &w.row,
			w.server()); d[0].Remaining != free+w.held() {
			t.Errorf("%v: %d are said to be left, want %d", a, d[0].Remaining, free+w.held())
		}
	}
}

// decide decides a hit in a process, with an immediate answer.
func (p *process) decide(cost int64) {
	if !p.hit(cost) {
		f := p.batches[len(p.batches)-1]
		p.w.execute(f)
		p.answer(f)
	}
}

// TestARequestThatNeedsWhatIsHeldGetsIt sends a hit that is larger than the lease while little is left in the
// row. The units of the process are refunded before the database decides the hit.
func TestARequestThatNeedsWhatIsHeldGetsIt(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow,
		ratelimit.TokenBucket} {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 300, Window: time.Hour, Lease: 0.5}
		w := newWorld(l, 1)
		p := w.processes[0]
		for range 5 {
			p.decide(2)
			w.time += 100000
		}
		// The row keeps a little more than the least for a lease, and all of it passes in one hit.
		most := 290 - w.held() - 40
		p.decide(most)
		if held := w.held(); held < 5 {
			t.Fatalf("%v: %d units are held", a, held)
		}
		p.hit(290 - most)
		f := p.batches[len(p.batches)-1]
		w.execute(f)
		if !f.admitted {
			t.Errorf("%v: a hit of all that is left was refused", a)
		}
	}
}

// TestAFloodOfRefusalsEvictsNoLease fills the memory with rows without a lease, which take at most half of
// it. The units of an evicted lease are refunded.
func TestAFloodOfRefusalsEvictsNoLease(t *testing.T) {
	now := int64(1)
	rows := lease.New(lease.Options{Max: 100, Refusals: true, Horizon: time.Hour, MinHits: 4,
		Clock: func() int64 { return now }})
	for i := range 60 {
		hitUntilHeld(rows, now, fmt.Sprint(i))
	}
	before := lease.Stats(rows)
	for i := range 1000 {
		view := algorithm.View{Limit: conformance.Limits("", 3)[0], Now: 1e15}
		lease.RememberRefusal(rows, lease.RowID{Prefix: "q", Key: fmt.Sprint(i)}, &view, 1, time.Hour,
			lease.NextSequence(rows))
	}
	after := lease.Stats(rows)
	if before.Leases < 45 || before.Leases > 50 || after.Leases != before.Leases ||
		after.Units != before.Units || after.Refusing != 50 {
		t.Errorf("before: %+v, after 1,000 refusals: %+v", before, after)
	}
}
