package lease_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
