package lease_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasedLimit is a limit with leases.
var leasedLimit = &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 30000,
	Window: 24 * time.Hour, Lease: 0.05}

// hitUntilLeased sends hits on a key until it has a lease with units.
func hitUntilLeased(rows *lease.Set, now int64, key string) {
	hits := []ratelimit.Hit{{Limit: leasedLimit, Key: key, Cost: 1}}
	for range 6 {
		found, passed := take(rows, hits, make([]ratelimit.Decision, 1))
		if passed || found[0] == nil {
			continue
		}
		_, n := lease.NextCharge(rows, found[0])
		view := algorithm.View{Limit: leasedLimit, Row: algorithm.Row{Start: 1e15}, Now: 1e15 + now,
			Free: 20000}
		lease.Update(rows, found[0], &lease.Answer{View: &view, Sent: now, Requested: n > 0, Units: n})
	}
}

// EndAll ends all leases and refunds all their units. Half of the rows have leases, which
// is the most that a Set allows.
func TestEndAllRefundsAllUnits(t *testing.T) {
	const keys = 20000
	now := int64(1)
	refunded := int64(0)
	rows := lease.New(lease.Options{Max: 32000, Horizon: time.Hour, MinHits: 4,
		Clock: func() int64 { return now }})
	for i := range keys {
		hitUntilLeased(rows, now, fmt.Sprint(i))
	}
	before := lease.Stats(rows)
	if before.Leases != 16000 || before.Units < before.Leases {
		t.Fatalf("got %+v, want 16000 leases with units", before)
	}
	lease.EndAll(rows)
	for _, r := range lease.Refunds(rows) {
		refunded += r.N
	}
	check.Equal(t, "refunded units", refunded, before.Units)
	check.Equal(t, "after EndAll", lease.Stats(rows), lease.Figures{Decided: before.Decided})
}

// An answer that comes after its lease has ended adds no units to another lease of the row, because a reset
// may have undone the charge.
func TestLateAnswerIsNotForNewLease(t *testing.T) {
	now := int64(1)
	rows := lease.New(lease.Options{Max: 100, Horizon: time.Hour, MinHits: 4,
		Clock: func() int64 { return now }})
	hitUntilLeased(rows, now, "k")
	id := lease.RowOf(leasedLimit, "k")
	view := algorithm.View{Limit: leasedLimit, Row: algorithm.Row{Start: 1e15}, Now: 1e15, Free: 20000}
	lease.KeepRows(rows, []lease.Held{{ID: id, View: &view}}) // keeps the row after the lease
	lease.EndLease(rows, id)
	lease.Refunds(rows)
	now = 10
	hits := []ratelimit.Hit{{Limit: leasedLimit, Key: "k", Cost: 1}}
	found, _ := take(rows, hits, make([]ratelimit.Decision, 1))
	lease.Update(rows, found[0], &lease.Answer{View: &view, Sent: 1, Requested: true, Units: 100})
	check.Equal(t, "units of the new lease", lease.Units(rows, found[0]), 0)
	check.Equal(t, "refunds", len(lease.Refunds(rows)), 1)
}

// An answer to a hit extends the life of the remaining units.
func TestAnswerExtendsLease(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow,
		ratelimit.TokenBucket} {
		w := newWorld(&ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 30000, Window: time.Hour,
			Lease: 0.05}, 1)
		p := w.processes[0]
		for range 12 {
			p.decide(1)
			w.time += 100000
		}
		before := w.leasedUnits()
		w.time += 1400000 // the units have expired
		p.decide(1)
		d := make([]ratelimit.Decision, 1)
		_, passed := take(p.leases, []ratelimit.Hit{{Limit: w.limit, Key: "k", Cost: 1}}, d)
		if before == 0 || !passed || w.leasedUnits() < before-1 {
			t.Fatalf("%v: %d of %d units are left after %+v, want one used", a, w.leasedUnits(), before,
				d[0])
		}
		free, _ := algorithm.Of(w.limit).Peek(w.limit, &w.row, w.server())
		check.Equal(t, fmt.Sprint(a, ": Remaining"), d[0].Remaining, free+w.leasedUnits())
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

// If a hit costs more than the units of the lease, and little is left in the row, the process refunds these
// units before the database decides the hit. So the hit can use them.
func TestLargeHitGetsUnitsOfLease(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow,
		ratelimit.TokenBucket} {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 300, Window: time.Hour, Lease: 0.5}
		w := newWorld(l, 1)
		p := w.processes[0]
		algorithm.Of(l).Charge(l, &w.row, w.server(), 200, 1) // of another process
		for range 5 {
			p.decide(2)
			w.time += 100000
		}
		if n := w.leasedUnits(); n < 5 {
			t.Fatalf("%v: %d leased units, want at least 5", a, n)
		}
		p.hit(90)
		f := p.batches[len(p.batches)-1]
		w.execute(f)
		if !f.admitted {
			t.Errorf("%v: a hit of the whole remaining quota was refused, want it admitted", a)
		}
	}
}
