package lease

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// maxGrowth bounds the units of a lease to a multiple of the units used since the last charge.
	maxGrowth = 4

	// answerTimeout is the time after which a charge without an answer is repeated, in microseconds. If the
	// answer still comes, the lease gets the units of both charges.
	answerTimeout = 2000000
)

// NextCharge returns the limit of a row's lease and the number of units to charge for it now, or nil and 0. A
// charge raises the units of the lease to the least of three numbers: the units that hits use in a horizon at
// the present rate, maxGrowth times the units used since the last charge, and maxUnits. If the present units
// expire soon, it charges one more, so that the answer extends their life. The caller must send a charge that
// NextCharge returns: until its answer or answerTimeout, NextCharge returns no other.
func NextCharge(s *Set, r *Cached) (*ratelimit.Limit, int64) {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	now := Now(s)
	if r.Limit == nil || now < r.nextChargeAt || owes(r) {
		return nil, 0
	}
	horizon := Horizon(s, r.Limit)
	elapsed := now - r.usedSince
	if shortest := horizon/maxGrowth + 1; elapsed < shortest { // so target is at most maxGrowth times Used
		elapsed = shortest
	}
	target := int64(float64(r.Used) * float64(horizon) / float64(elapsed))
	if bound := maxUnits(r); target > bound {
		target = bound
	}
	if target <= r.Units {
		if r.usedWhenExpiring < 0 || r.Used <= r.usedWhenExpiring {
			return nil, 0
		}
		target = r.Units + 1 // hits use units that expire soon, and the answer extends the life of all units
	}
	r.Used = 0
	r.usedSince = now
	r.nextChargeAt = now + answerTimeout
	return r.Limit, target - r.Units
}

// maxUnits returns the maximum units of a lease: a share of the remaining quota, including the units of the
// lease. It is 0 if the row may be used up within the life of units, because other processes would then lack
// the units that stay unused.
func maxUnits(r *Cached) int64 {
	quota := r.Rest + r.Units
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
	Requested bool  // the statement tried to charge units for the lease
	Units     int64 // the number of units that it charged for the lease
}

// Update updates the lease of a row with an answer. It adds the charged units to the lease, and refunds the
// units beyond maxUnits and those of another claim. It refunds all units if the lease has ended, the row
// refused a hit, or the units have expired. It evicts no rows.
func Update(s *Set, r *Cached, a *Answer) {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	v := a.View
	life, claim := algorithm.Of(v.Limit).Lease(v.Limit, &v.Row, v.Now, maxLife(s, v.Limit))
	if r.Limit == nil || !r.Limit.Equal(v.Limit) || a.Sent < r.begun { // the lease has ended
		addRefund(s, r, v.Limit, a.Units, claim)
		return
	}
	if claim != r.claim {
		refundUnits(s, r, r.Units)
		r.claim = claim
	}
	decidedAt := algorithm.ChargedAt(v.Limit, &v.Row, v.Now)
	updateDrain(r, v.Free, decidedAt-r.decidedAt, maxLife(s, v.Limit))
	r.decidedAt = decidedAt
	r.Units += a.Units
	r.Rest = v.Free
	r.Ends = time.Duration(a.Sent+life) * time.Microsecond
	r.usedWhenExpiring = -1
	r.Reset = time.UnixMicro(v.Reset)
	reset := r.Reset.Add(time.Second-1).Unix() - atomic.LoadInt64(&s.Ahead)
	r.ResetText = []string{strconv.FormatInt(reset, 10)}
	if a.Requested {
		r.nextChargeAt = 0
	}
	units := maxUnits(r)
	if a.Refused || Now(s) >= a.Sent+life {
		units = 0
	}
	refundUnits(s, r, r.Units-units)
	if bound := v.Limit.Capacity() - r.Units; r.Rest > bound {
		r.Rest = bound // the bucket was refilled while units were leased
	}
}

// updateDrain updates drainPerLife with an answer: the row had free units left, elapsed microseconds after
// the time of the answer before. drainPerLife is an average over the life of units.
func updateDrain(r *Cached, free, elapsed, life int64) {
	if elapsed < 0 {
		return // a later answer came first
	}
	span := life
	if elapsed > span {
		span = elapsed
	}
	drained := float64(r.Rest-free)*float64(life) + float64(r.drainPerLife)*float64(span-elapsed)
	r.drainPerLife = int64(drained / float64(span))
	if r.drainPerLife < 0 {
		r.drainPerLife = 0 // a new window has begun, or units were refunded
	}
}

// Units returns the number of units of a row's lease.
func Units(s *Set, r *Cached) int64 {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	return r.Units
}
