package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Refund describes a refund of Units to a row. It has no effect if the row has another claim.
type Refund struct {
	Row   RowID
	Limit *ratelimit.Limit
	Units int64
	Claim int64
}

// Refunds removes and returns the refunds, which the caller sends with the next batch. Refunds are collected,
// because a statement that refunds one row costs as much as one that decides all requests of a batch.
func Refunds(s *Set) []Refund {
	if atomic.LoadInt32(&s.Refunding) == 0 {
		return nil
	}
	atomic.StoreInt32(&s.Refunding, 0)
	var refunds []Refund
	for _, stripe := range s.Stripes {
		stripe.Mu.Lock()
		refunds = append(refunds, stripe.refunds...)
		stripe.refunds = nil
		stripe.Mu.Unlock()
	}
	return refunds
}

// addRefund adds a refund of n units to those that Refunds returns, unless n is 0 or less. The caller holds
// the mutex of the stripe.
func addRefund(s *Set, r *Cached, l *ratelimit.Limit, n, claim int64) {
	if n > 0 {
		stripe := s.Stripes[r.stripeIndex]
		stripe.refunds = append(stripe.refunds, Refund{r.ID, l, n, claim})
		atomic.StoreInt32(&s.Refunding, 1)
	}
}

// refundUnits refunds n units of a lease, unless n is 0 or less. The caller holds the mutex of the stripe.
func refundUnits(s *Set, r *Cached, n int64) {
	if n > 0 {
		addRefund(s, r, r.Limit, n, r.claim)
		r.Units -= n
		r.Rest += n
	}
}

// endLease ends the lease of a row, if it has one, and refunds the units. The caller holds the mutex of the
// stripe and calls refreshCached afterwards.
func endLease(s *Set, r *Cached) {
	if r.Limit == nil {
		return
	}
	refundUnits(s, r, r.Units)
	r.Limit = nil
	delete(s.Stripes[r.stripeIndex].leased, r.ID)
}

// EndLease ends the lease of a row. Call it before a request refunds or resets the row: the unused units of
// the lease count as used in the row, so a refund could otherwise exceed what requests have used. Call it
// also after the row has refused a request of several hits, so that a retry may use the units.
func EndLease(s *Set, id RowID) {
	withCached(s, id, false, func(r *Cached) { endLease(s, r) })
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
func Sweep(s *Set) []*Cached {
	var rows []*Cached
	now := time.Duration(Now(s)) * time.Microsecond
	soon := now + time.Duration(s.horizon/2)*time.Microsecond // so that most rows need no call of Horizon
	ended := atomic.LoadInt32(&s.ended) != 0
	for _, stripe := range s.Stripes {
		stripe.Mu.Lock()
		for _, r := range stripe.leased {
			switch {
			case ended || now >= r.Ends:
				endLease(s, r)
				refreshCached(s, stripe, r)
			case r.Units == 0:
			case r.Used >= 3*r.Units || r.usedWhenExpiring >= 0 && r.Used > r.usedWhenExpiring:
				rows = append(rows, r)
			case soon >= r.Ends && r.usedWhenExpiring < 0 &&
				now+time.Duration(Horizon(s, r.Limit)/2)*time.Microsecond >= r.Ends:
				r.usedWhenExpiring = r.Used
			}
		}
		stripe.Mu.Unlock()
	}
	return rows
}

// EndAll ends all leases. No lease begins afterwards.
func EndAll(s *Set) {
	atomic.StoreInt32(&s.ended, 1)
	Sweep(s)
}
