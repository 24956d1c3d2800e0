package lease_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// decide has a process decide a hit, with the answer at once.
func (p *process) decide(cost int64) {
	if !p.hit(cost) {
		f := p.batches[len(p.batches)-1]
		p.w.execute(p, f)
		p.answer(f)
	}
}

// TestUnitsThatGoBackToABucketMakeNoOtherLeaseTooLong: a bucket lacks only what two processes
// hold. One of them gives its units back before the refill. The refill then adds as much as if the
// other process held nothing, so that process must not use its units after the refill.
func TestUnitsThatGoBackToABucketMakeNoOtherLeaseTooLong(t *testing.T) {
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 140, Burst: 600, Window: 4 * time.Second, Lease: 0.5}
	w := newWorld(l, 2)
	first, second := w.processes[0], w.processes[1]
	lend := func(p *process) {
		for _, cost := range []int64{2, 2, 2, 6, 34} {
			p.decide(cost)
			f := p.send(0)
			w.execute(p, f)
			p.answer(f)
			w.time += 100
		}
	}
	first.decide(1) // makes the row: its refills follow from now
	refill := w.time + 4000000
	w.time = refill + 4000000 - 290000
	lend(first)
	w.time = refill + 4000000 - 100000
	lend(second)
	if w.held() < 300 {
		t.Fatalf("only %d units are held", w.held())
	}
	lease.End(first.leases)
	f := first.send(0)
	w.execute(first, f)
	first.answer(f)
	w.time = refill + 4000000
	free, _ := algorithm.Of(l).Look(l, &w.row, w.server())
	for ; free > 0; free-- {
		first.decide(1)
	}
	for i := 0; i < 300; i++ {
		second.decide(1)
	}
	if w.oracle.wrong != nil {
		t.Error(w.oracle.wrong)
	}
}

// TestUnitsThatGoBackToABucketLateAreNotLost: they end, and the process is too busy to send them for half a
// minute. The next refill is far away, so the bucket has them again.
func TestUnitsThatGoBackToABucketLateAreNotLost(t *testing.T) {
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 1000, Window: time.Hour, Lease: 0.5}
	w := newWorld(l, 1)
	p := w.processes[0]
	for range 5 {
		p.decide(1)
		f := p.send(0)
		w.execute(p, f)
		p.answer(f)
	}
	if w.held() == 0 {
		t.Fatal("no units are held")
	}
	w.time += 30000000
	lease.End(p.leases)
	w.execute(p, p.send(0))
	if free, _ := algorithm.Of(l).Look(l, &w.row, w.server()); free != 995 {
		t.Errorf("%d are left, want 995", free)
	}
}
