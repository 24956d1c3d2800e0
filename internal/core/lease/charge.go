package lease

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout is the time after which a charge without an answer is repeated, in microseconds. If the
	// answer still comes, the lease gets the units of both charges.
	answerTimeout = 2000000

	// maxGrowth bounds the units of a lease to a multiple of the units used since the last charge.
	maxGrowth = 4

	// checksPerHorizon bounds how often NextCharge decides about a lease that needs no units.
	checksPerHorizon = 4
)

// Renew reports whether a lease has enough units for a hit. If the hit leaves fewer than Floor units, Renew
// queues the lease for the next Sweep, after which further units are charged. The caller holds the mutex of
// the stripe.
func Renew(s *Set, r *Row, cost int64) bool {
	if r.N < cost+r.Floor {
		r.Floor = 0
		s.mu.Lock()
		s.renewals = append(s.renewals, r)
		s.mu.Unlock()
	}
	return r.N >= cost
}

// NextCharge returns the limit of a row's lease and the number of units to charge for it now, or 0. The
// charge raises the units of the lease to the least of three numbers: the units that hits use in a horizon at
// the present rate, maxGrowth times the units used since the last charge, and maxUnits.
func NextCharge(s *Set, r *Row) (*ratelimit.Limit, int64) {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	now := Now(s)
	if r.Limit == nil || r.answeredAt == 0 || now < r.nextChargeAt {
		return nil, 0
	}
	elapsed := now - r.usedSince
	if minElapsed := r.horizon/maxGrowth + 1; elapsed < minElapsed {
		elapsed = minElapsed
	}
	target := int64(float64(r.Used) * float64(r.horizon) / float64(elapsed))
	if target <= s.MinHits*r.costPerHit/4 { // see Set.MinHits
		r.nextChargeAt = now + r.horizon/checksPerHorizon
		return nil, 0
	}
	if bound := maxUnits(r, r.remaining+r.N); target > bound {
		target = bound
	}
	if target <= r.N {
		if !endsSoon(r, now) {
			r.nextChargeAt = now + r.horizon/checksPerHorizon
			return nil, 0
		}
		target = r.N + 1 // the answer extends the life of all units
	}
	r.usedSince = now
	r.Used = 0
	r.nextChargeAt = now + answerTimeout
	return r.Limit, target - r.N
}

// endsSoon reports whether the units of a lease expire within half a horizon.
func endsSoon(r *Row, now int64) bool {
	return time.Duration(now+r.horizon/2)*time.Microsecond >= r.Ends
}

// maxUnits returns the maximum units of a lease. quota is the remaining quota, including the units of the
// lease.
func maxUnits(r *Row, quota int64) int64 {
	if quota <= r.drainPerLife {
		return 0
	}
	return int64(r.Limit.Lease * float64(quota))
}

// Answer describes a row after a statement.
type Answer struct {
	View      *algorithm.View
	Sent      int64 // the time of Now before the statement was sent
	Refused   bool  // a hit of a request was refused
	Requested bool  // the statement also had to charge units for the lease
	Units     int64 // the number of units charged for the lease
}

// Update updates the lease of a row with an answer. It adds the charged units to the lease up to maxUnits,
// and refunds the units beyond maxUnits. It evicts no rows.
func Update(s *Set, r *Row, a *Answer) {
	v := a.View
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	if r.Limit == nil || !r.Limit.Equal(v.Limit) { // the lease has ended
		if a.Units > 0 {
			_, claim := algorithm.Of(v.Limit).Lease(v.Limit, &v.Row, v.Now, 0)
			addRefund(s, Refund{r.ID, v.Limit, a.Units, claim}, true)
		}
		return
	}
	now := Now(s)
	life, claim := algorithm.Of(v.Limit).Lease(v.Limit, &v.Row, v.Now, maxLife(r))
	ends := a.Sent + life
	answered := algorithm.ChargedAt(v.Limit, &v.Row, v.Now)
	late := r.answeredAt - answered
	if late <= 0 || late > answerTimeout { // else a later answer has come first
		if r.answeredAt != 0 {
			updateDrain(r, v, answered)
		}
		r.answeredAt = answered
		r.remaining = v.Free
		r.Reset = time.UnixMicro(v.Reset)
		reset := r.Reset.Add(time.Second-1).Unix() - atomic.LoadInt64(&s.Ahead)
		r.ResetText = []string{strconv.FormatInt(reset, 10)}
		if claim != r.claim {
			refundUnits(s, r, false)
			r.claim = claim
		}
		r.Ends = time.Duration(ends) * time.Microsecond
	}
	if a.Refused {
		refundUnits(s, r, true)
	}
	if a.Requested {
		addUnits(s, r, a.Units, claim, now >= ends, now)
	}
	setRest(r)
}

// addUnits adds the units of a charge to a lease, and refunds the units that the lease cannot keep. late
// reports that the units have already expired. The caller holds the mutex of the stripe.
func addUnits(s *Set, r *Row, units, claim int64, late bool, now int64) {
	room := maxUnits(r, r.remaining+r.N+units) - r.N
	if room < 0 || late || claim != r.claim {
		room = 0
	}
	if excess := units - room; excess > 0 {
		addRefund(s, Refund{r.ID, r.Limit, excess, claim}, true)
		if claim == r.claim {
			r.remaining += excess
		}
		units = room
	}
	r.nextChargeAt = 0
	if units == 0 {
		r.nextChargeAt = now + r.horizon/checksPerHorizon
		return
	}
	r.N += units
	r.Floor = r.N / 4 // so many units last until the answer to the next charge
}

// setRest sets Rest after a change of the remaining quota or of the units. The caller holds the mutex of the
// stripe.
func setRest(r *Row) {
	r.Rest = r.remaining
	if bound := r.Limit.Capacity() - r.N; r.Rest > bound {
		r.Rest = bound
	}
	if r.Rest < -r.N {
		r.Rest = -r.N // the quota is overdrawn
	}
}

// updateDrain sets drainPerLife from an answer. While the remaining quota is not above drainPerLife, maxUnits
// is 0, because other processes could lack the unused units. The caller holds the mutex of the stripe.
func updateDrain(r *Row, v *algorithm.View, answered int64) {
	life := maxLife(r)
	elapsed := answered - r.answeredAt
	lost := r.remaining - v.Free
	switch {
	case elapsed < 0:
		return
	case elapsed < life:
		lost += int64(float64(r.drainPerLife) * float64(life-elapsed) / float64(life))
	default:
		lost = int64(float64(lost) * float64(life) / float64(elapsed))
	}
	if lost < 0 {
		lost = 0 // a new window has begun, or units were refunded
	}
	r.drainPerLife = lost
}

// Units returns the number of units of a row's lease.
func Units(s *Set, r *Row) int64 {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	return r.N
}
