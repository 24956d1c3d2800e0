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

// HasRefunds reports whether Refunds has any to return.
func HasRefunds(s *Set) bool { return atomic.LoadInt32(&s.refunding) != 0 }

// Refunds removes and returns the refunds, which the caller sends with the next batch. Refunds are collected,
// because a statement that refunds one row costs as much as one that decides all requests of a batch.
func Refunds(s *Set) []Refund {
	if !HasRefunds(s) {
		return nil
	}
	atomic.StoreInt32(&s.refunding, 0)
	var refunds []Refund
	for _, stripe := range s.stripes {
		stripe.mu.Lock()
		refunds = append(refunds, stripe.refunds...)
		stripe.refunds = nil
		stripe.mu.Unlock()
	}
	return refunds
}

// addRefund adds a refund of n units to those that Refunds returns, unless n is 0 or less. The caller holds
// the mutex of the stripe.
func addRefund(s *Set, r *Row, l *ratelimit.Limit, n, claim int64) {
	if n > 0 {
		stripe := s.stripes[r.stripeIndex]
		stripe.refunds = append(stripe.refunds, Refund{r.ID, l, n, claim})
		atomic.StoreInt32(&s.refunding, 1)
	}
}

// refundUnits refunds n units of a lease, unless n is 0 or less. The caller holds the mutex of the stripe.
func refundUnits(s *Set, r *Row, n int64) {
	if n > 0 {
		addRefund(s, r, r.limit, n, r.claim)
		r.n -= n
		r.rest += n
	}
}

// endLease ends the lease of a row, if it has one, and refunds the units. The caller holds the mutex of the
// stripe and calls refreshRow afterwards.
func endLease(s *Set, r *Row) {
	if r.limit == nil {
		return
	}
	refundUnits(s, r, r.n)
	r.limit = nil
	delete(s.stripes[r.stripeIndex].leased, r.ID)
}

// EndLease ends the lease of a row. Call it before a request refunds or resets the row: the unused units of
// the lease count as used in the row, so a refund could otherwise exceed what requests have used. Call it
// also after the row has refused a request of several hits, so that a retry may use the units.
func EndLease(s *Set, id RowID) {
	withRow(s, id, false, func(_ *rowStripe, r *Row) { endLease(s, r) })
}

// maxInterval bounds SweepInterval.
const maxInterval = 400 * time.Millisecond

// SweepInterval returns the time to wait between two calls of Sweep: a tenth of Options.Horizon, at most
// maxInterval. Refunds and charges wait for up to this time, so that one statement has many of them.
func SweepInterval(s *Set) time.Duration {
	if d := s.options.Horizon / 10; d < maxInterval {
		return d
	}
	return maxInterval
}

// Sweep ends the leases with units that have expired. It returns the rows for which the caller calls
// NextCharge, because hits have used three quarters of their units, or use units that expire soon.
func Sweep(s *Set) []*Row {
	var rows []*Row
	now := time.Duration(Now(s)) * time.Microsecond
	soon := now + time.Duration(s.horizon/2)*time.Microsecond // so that most rows need no call of Horizon
	ended := atomic.LoadInt32(&s.ended) != 0
	for _, stripe := range s.stripes {
		stripe.mu.Lock()
		for _, r := range stripe.leased {
			switch {
			case ended || now >= r.ends:
				endLease(s, r)
				refreshRow(s, stripe, r)
			case r.n == 0:
			case r.used >= 3*r.n || r.usedWhenExpiring >= 0 && r.used > r.usedWhenExpiring:
				rows = append(rows, r)
			case soon >= r.ends && r.usedWhenExpiring < 0 &&
				now+time.Duration(Horizon(s, r.limit)/2)*time.Microsecond >= r.ends:
				r.usedWhenExpiring = r.used
			}
		}
		stripe.mu.Unlock()
	}
	return rows
}

// EndAll ends all leases. No lease begins afterwards.
func EndAll(s *Set) {
	atomic.StoreInt32(&s.ended, 1)
	Sweep(s)
}
