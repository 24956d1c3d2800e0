package lease_test

import (
	"fmt"
	"hash/maphash"
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

// TestAllUnitsGoBackAtTheEnd, of however many leases, in batches that delay no request for long.
func TestAllUnitsGoBackAtTheEnd(t *testing.T) {
	const keys = 50000
	now := int64(0)
	leases := lease.New(lease.Options{Max: keys, Horizon: time.Hour, Clock: func() int64 { return now }})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 30000, Window: 24 * time.Hour, Lease: 0.05}
	answer := func(key string, ask *lease.Ask) {
		a := lease.Answer{Row: lease.RowID{Prefix: "p", Key: key}, Limit: l, Free: 30000}
		if ask != nil {
			a.Ask = ask
			a.Leased = lease.Units{N: ask.N, Ends: now + int64(time.Hour/time.Microsecond), Claim: 1}
		}
		lease.Update(leases, &a)
	}
	work := func() (int, int) {
		now += 100000 // charges and refunds are gathered
		asks, returns := lease.Work(leases, false)
		if len(asks) > 1000 || len(returns) > 1000 {
			t.Fatalf("%d charges and %d refunds in a batch", len(asks), len(returns))
		}
		for i := range asks {
			answer(asks[i].Row.Key, &asks[i])
		}
		return len(asks), len(returns)
	}
	for i := 0; i < keys; i++ {
		hits := []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Cost: 1}}
		for n := 0; n < 4; n++ {
			lease.Take(leases, hits, make([]ratelimit.Decision, 1))
		}
		answer(hits[0].Key, nil)
		if i%100 == 0 {
			work()
		}
	}
	for n := 1; n > 0; {
		n, _ = work()
	}
	held, count := lease.Total(leases), int(lease.Count(leases))
	if count < keys*9/10 || held < int64(count) {
		t.Fatalf("%d keys have leases of %d units", count, held)
	}
	lease.End(leases)
	back := 0
	for lease.Due(leases) {
		_, n := work()
		back += n
	}
	if back != count {
		t.Errorf("%d of %d leases were given back", back, count)
	}
}

// TestUnitsThatEndAreStillLeft: the first units of a lease end, and go back. The hits that later units
// decide are told that they are left.
func TestUnitsThatEndAreStillLeft(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow, ratelimit.TokenBucket} {
		w := newWorld(&ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 30000, Window: time.Hour, Lease: 0.05}, 1)
		p := w.processes[0]
		renew := func(after int64) {
			w.time += after
			f := p.send(0)
			w.execute(p, f)
			p.answer(f)
		}
		for range 5 {
			p.decide(1)
			renew(100000)
		}
		l := p.leases.Shards[maphash.String(p.leases.Seed, row.Key)%lease.ShardCount].Rows[row]
		for l.First.N+l.Then.N > l.Low {
			p.decide(1) // until a renewal is wanted, while some units are left
		}
		renew(1000000)
		w.time += 600000
		before := w.held()
		d := make([]ratelimit.Decision, 1)
		if !lease.Take(p.leases, []ratelimit.Hit{{Limit: w.limit, Key: "k", Cost: 1}}, d) || w.held() >= before-1 {
			t.Fatalf("%v: of %d units, %d are held, %+v", a, before, w.held(), d[0])
		}
		if free, _ := algorithm.Of(w.limit).Look(w.limit, &w.row, w.server()); d[0].Remaining != free+before-1 {
			t.Errorf("%v: %d are said to be left, want %d", a, d[0].Remaining, free+before-1)
		}
	}
}

// TestARequestThatNeedsWhatIsHeldGetsIt: little is left in the row, and what the process holds goes back
// before the database decides a hit that is larger than the lease.
func TestARequestThatNeedsWhatIsHeldGetsIt(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow, ratelimit.TokenBucket} {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 300, Window: time.Hour, Lease: 0.5}
		w := newWorld(l, 1)
		p := w.processes[0]
		for i := 0; i < 5; i++ {
			p.decide(2)
			w.time += 100000
			f := p.send(0)
			w.execute(p, f)
			p.answer(f)
		}
		// The row keeps a little more than the least for a lease, and all of it passes in one hit.
		most := 290 - w.held() - 25
		p.decide(most)
		if held := w.held(); held < 5 {
			t.Fatalf("%v: %d units are held", a, held)
		}
		p.hit(290 - most)
		f := p.batches[len(p.batches)-1]
		w.execute(p, f)
		if !f.admitted {
			t.Errorf("%v: a hit of all that is left was refused", a)
		}
	}
}
