package lease

import (
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// patience bounds the wait for the answer to a charge, in microseconds. If the answer comes later, the lease
// gets the units of both charges.
const patience = 2000000

// Renew reports whether a lease has the units of a hit. If few are left after it, one of the next batches
// charges further units, together with those of other leases. The caller holds the mutex of the stripe.
func Renew(t *Set, r *Row, cost int64) bool {
	if r.N < cost+r.Floor {
		r.Floor = 0
		t.mu.Lock()
		t.renewed = append(t.renewed, r)
		t.mu.Unlock()
	}
	return r.N >= cost
}

// Ask returns the limit of the lease of a row, and how many units to charge for it now: what its hits used in
// a horizon, at most four times as much as before and a few, and at most the share of what is left, less what
// the lease has. 0 is nothing.
func Ask(t *Set, r *Row) (*ratelimit.Limit, int64) {
	s := t.Stripes[r.stripe]
	s.Mu.Lock()
	defer s.Mu.Unlock()
	now := Now(t)
	if r.Limit == nil || !r.known || now < r.asked {
		return nil, 0
	}
	settle(s, r)
	elapsed := now - r.since
	if elapsed < r.horizon/8+1 {
		elapsed = r.horizon/8 + 1
	}
	target := int64(float64(r.used) * float64(r.horizon) / float64(elapsed))
	if target < leastHits*r.perHit/2 {
		r.asked = now + r.horizon/4
		return nil, 0
	}
	if most := 4*r.asks + 8; target > most {
		target = most
	}
	if most := share(r, r.free+r.N); target > most {
		target = most
	}
	if target <= r.N {
		if !ending(r, now) {
			r.asked = now + r.horizon/4
			return nil, 0
		}
		target = r.N + 1 // the answer extends the life of all units
	}
	r.since = now
	r.used = 0
	r.asked = now + patience
	return r.Limit, target - r.N
}

// ending reports whether the units of a lease end within half of a horizon.
func ending(r *Row, now int64) bool {
	return time.Duration(now+r.horizon/2)*time.Microsecond >= r.Ends
}

// share returns the most that this process may hold of what is left.
func share(r *Row, left int64) int64 {
	if left <= r.lost {
		return 0
	}
	return int64(r.Limit.Lease * float64(left))
}

// Answer is the state of a row after a statement.
type Answer struct {
	View    *algorithm.View
	Sent    int64 // the time of Now before the statement was sent
	Refused bool  // a hit of a caller was refused
	Asked   bool  // units were asked for
	Units   int64 // how many of them were charged
}

// Update updates the lease of a row with an answer. Of the units in it, the lease gets no more than the share
// of what is left. The others are refunded. It evicts no row.
func Update(t *Set, r *Row, a *Answer) {
	v := a.View
	s := t.Stripes[r.stripe]
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if r.Limit == nil || !r.Limit.Equal(v.Limit) { // the lease has ended
		if a.Units > 0 {
			_, claim := algorithm.Of(v.Limit).Lease(v.Limit, &v.Row, v.Now, 0)
			addRefund(t, Refund{r.ID, v.Limit, a.Units, claim}, true)
		}
		return
	}
	now := Now(t)
	settle(s, r)
	life, claim := algorithm.Of(v.Limit).Lease(v.Limit, &v.Row, v.Now, mostLife(r))
	ends := a.Sent + life
	answered := algorithm.ChargedAt(v.Limit, &v.Row, v.Now)
	late := r.answered - answered
	if late <= 0 || late > patience { // else the answer is older than the row
		if r.known {
			lose(r, v, answered)
		}
		r.answered = answered
		r.free = v.Free
		if reset := time.UnixMicro(v.Reset); !r.known || !reset.Equal(r.Reset) {
			r.Reset = reset
			r.ResetText = strconv.FormatInt(reset.Add(time.Second-1).Unix(), 10)
		}
		if claim != r.claim {
			refundUnits(t, r, false)
			r.claim = claim
		}
		r.Ends = time.Duration(ends) * time.Microsecond
	}
	r.known = true
	if a.Refused {
		refundUnits(t, r, true)
	}
	if a.Asked {
		takeIn(t, r, a.Units, claim, now >= ends, now)
	}
	setRest(r)
}

// takeIn gives a lease the units that were charged for it. late reports whether their time is over. The
// caller holds the mutex of the stripe.
func takeIn(t *Set, r *Row, units, claim int64, late bool, now int64) {
	most := share(r, r.free+r.N+units) - r.N
	if most < 0 || late || claim != r.claim {
		most = 0
	}
	if excess := units - most; excess > 0 {
		addRefund(t, Refund{r.ID, r.Limit, excess, claim}, true)
		if claim == r.claim {
			r.free += excess
		}
		units = most
	}
	r.asked = 0
	if units == 0 {
		r.asked = now + r.horizon/4
		return
	}
	r.N += units
	r.counted = r.N
	r.asks = r.N
	r.Floor = r.N / 4
	r.gained = units
	r.gainedAt = now
}

// setRest sets Rest after a change of what is left or of the units. The caller holds the mutex of the stripe.
func setRest(r *Row) {
	r.Rest = r.free
	if most := r.Limit.Capacity() - r.N; r.Rest > most {
		r.Rest = most
	}
	if r.Rest < -r.N {
		r.Rest = -r.N // the quota is overdrawn
	}
}

// lose derives from an answer what the row loses to all processes in a life of units. If no more is left, the
// row gives no units: they could be unused when others need them. The caller holds the mutex of the stripe.
func lose(r *Row, v *algorithm.View, answered int64) {
	life := mostLife(r)
	elapsed := answered - r.answered
	lost := r.free - v.Free
	switch {
	case elapsed < 0:
		return
	case elapsed < life:
		lost += int64(float64(r.lost) * float64(life-elapsed) / float64(life))
	default:
		lost = int64(float64(lost) * float64(life) / float64(elapsed))
	}
	if lost < 0 {
		lost = 0 // the window has turned, or units came back
	}
	r.lost = lost
}

// HeldSince returns how many of the units of a row the lease had at a time of Now. A statement that was sent
// at that time does not count these units as left. It may count units that came later.
func HeldSince(t *Set, r *Row, since int64) int64 {
	s := t.Stripes[r.stripe]
	s.Mu.Lock()
	defer s.Mu.Unlock()
	held := r.N
	if r.gainedAt > since {
		held -= r.gained
	}
	if r.Limit == nil || held < 0 {
		return 0
	}
	return held
}
