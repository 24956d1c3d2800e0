package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Refund describes a refund of N units to a row. It has no effect if the row has another claim.
type Refund struct {
	Row   RowID
	Limit *ratelimit.Limit
	N     int64
	Claim int64
}

// addRefund sends a refund with the next batch if it is urgent. Otherwise the refund waits for Sweep, which
// sends many together, since a statement for one row costs as much as the decisions of its batch.
func addRefund(s *Set, r Refund, urgent bool) {
	if urgent {
		s.options.Refund(r)
		return
	}
	s.mu.Lock()
	s.refunds = append(s.refunds, r)
	s.mu.Unlock()
}

// refundAll sends the waiting refunds.
func refundAll(s *Set) {
	s.mu.Lock()
	refunds := s.refunds
	s.refunds = nil
	s.mu.Unlock()
	for _, r := range refunds {
		s.options.Refund(r)
	}
}

// refundUnits refunds the units of a lease and keeps the lease. urgent is as in addRefund. The caller holds
// the mutex of the stripe.
func refundUnits(s *Set, r *Row, urgent bool) {
	if r.N > 0 {
		addRefund(s, Refund{r.ID, r.Limit, r.N, r.claim}, urgent)
		r.remaining += r.N
	}
	r.N = 0
	r.Floor = 0
	setRest(r)
}

// endLease ends the lease of a row, if it has one, and refunds the units. The caller holds the mutex of the
// stripe and calls refreshRow afterwards.
func endLease(s *Set, r *Row) {
	if r.Limit == nil {
		return
	}
	refundUnits(s, r, true)
	r.Limit = nil
	r.answeredAt = 0
	r.nextChargeAt = 0
	r.drainPerLife = 0
	delete(s.Stripes[r.stripeIndex].leased, r.ID)
}

// EndLease ends the lease of a row. It runs before a request refunds or resets the row, because the request's
// refund would otherwise find the units charged and refund more than was used. After the row has refused a
// request of several hits, EndLease runs so that a retry may pass.
func EndLease(s *Set, id RowID) {
	withRow(s, id, false, func(_ *Stripe, r *Row) { endLease(s, r) })
	refundAll(s)
}

// maxInterval bounds SweepInterval.
const maxInterval = 400 * time.Millisecond

// SweepInterval returns the time to wait between two calls of Sweep: a tenth of Options.Horizon, at most
// maxInterval. Refunds and charges wait so long for others.
func SweepInterval(s *Set) time.Duration {
	if d := s.options.Horizon / 10; d < maxInterval {
		return d
	}
	return maxInterval
}

// Sweep refunds expired units, ends leases that have no units and no hits, and sends the waiting refunds. It
// returns the rows for which the caller calls NextCharge.
func Sweep(s *Set) []*Row {
	now := Now(s)
	ended := atomic.LoadInt32(&s.ended) != 0
	eachStripe(s, func(stripe *Stripe) { sweepStripe(s, stripe, now, ended) })
	refundAll(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.renewals
	s.renewals = nil
	return rows
}

// sweepStripe implements Sweep for the rows of a stripe. If ended is set, it ends all leases. The caller
// holds the mutex of the stripe.
func sweepStripe(s *Set, stripe *Stripe, now int64, ended bool) {
	for _, r := range stripe.leased {
		if r.N > 0 && time.Duration(now)*time.Microsecond >= r.Ends {
			refundUnits(s, r, false)
		}
		if r.N > 0 && r.Floor > 0 && endsSoon(r, now) {
			r.Floor = r.N + 1 // so that the next hit calls Renew
		}
		idle := now - r.usedSince
		if ended || r.N == 0 && idle > r.horizon && (r.Used == 0 || idle > 3*r.horizon) {
			endLease(s, r)
			refreshRow(s, stripe, r)
		}
	}
}

// EndAll ends all leases. No lease starts afterwards.
func EndAll(s *Set) {
	atomic.StoreInt32(&s.ended, 1)
	Sweep(s)
}
