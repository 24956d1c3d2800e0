package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Refund refunds N units of a row. It has no effect if the row has another claim.
type Refund struct {
	Row   RowID
	Limit *ratelimit.Limit
	N     int64
	Claim int64
}

// addRefund makes a refund. With now, the next batch has it. Other refunds wait for Sweep: a
// statement for one row costs as much as the decisions of its batch.
func addRefund(t *Set, r Refund, now bool) {
	if now {
		t.options.Refund(r)
		return
	}
	t.mu.Lock()
	t.refunds = append(t.refunds, r)
	t.mu.Unlock()
}

// refundAll makes the refunds that wait.
func refundAll(t *Set) {
	t.mu.Lock()
	refunds := t.refunds
	t.refunds = nil
	t.mu.Unlock()
	for _, r := range refunds {
		t.options.Refund(r)
	}
}

// refundUnits refunds the units of a lease, which stays. now is as in addRefund. The caller holds the mutex
// of the stripe.
func refundUnits(t *Set, r *Row, now bool) {
	if r.N > 0 {
		addRefund(t, Refund{r.ID, r.Limit, r.N, r.claim}, now)
		r.free += r.N
	}
	r.N = 0
	r.counted = 0
	r.gained = 0
	r.Floor = 0
	setRest(r)
}

// endLease ends the lease of a row, if it has one, and has its units refunded. The caller holds the mutex of
// the stripe, and calls keep.
func endLease(t *Set, r *Row) {
	if r.Limit == nil {
		return
	}
	refundUnits(t, r, true)
	r.Limit = nil
	r.known = false
	r.asked = 0
	r.asks = 0
	r.lost = 0
	atomic.AddInt64(&t.leases, -1)
}

// Drop ends the lease of a row to which a request refunds quota, or which a request resets. Its units are
// refunded before that: a refund that finds them charged would refund more than was used.
func Drop(t *Set, id RowID) {
	change(t, id, false, func(s *Stripe, r *Row) {
		if r.Limit != nil {
			settle(s, r)
		}
		endLease(t, r)
	})
	refundAll(t)
}

// GiveUp refunds the units of a lease at once, because the row refused a request of several hits.
func GiveUp(t *Set, id RowID) {
	change(t, id, false, func(s *Stripe, r *Row) {
		if r.Limit != nil {
			settle(s, r)
			refundUnits(t, r, true)
		}
	})
}

// Sweep refunds the units that have reached their end, and ends the leases without units that are not used,
// within a tenth of a horizon. It returns the rows with leases for which the caller calls Ask.
func Sweep(t *Set) []*Row {
	now := Now(t)
	if now-atomic.LoadInt64(&t.swept) >= atomic.LoadInt64(&t.shortestHorizon)/10 {
		atomic.StoreInt64(&t.swept, now)
		for _, s := range t.Stripes {
			s.Mu.Lock()
			for _, r := range s.Rows {
				if r.Limit == nil {
					continue
				}
				if r.N != r.counted {
					settle(s, r)
				}
				if r.N > 0 && time.Duration(now)*time.Microsecond >= r.Ends {
					refundUnits(t, r, false)
				}
				if r.N > 0 && r.Floor > 0 && r.used != r.swept && ending(r, now) {
					r.Floor = r.N + 1
					Renew(t, r, 0)
				}
				r.swept = r.used
				if r.N == 0 && now-r.since > r.horizon && (r.used == 0 || now-r.since > 3*r.horizon) {
					endLease(t, r)
					keep(t, s, r)
				}
			}
			s.Mu.Unlock()
		}
	}
	refundAll(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	renewed := t.renewed
	t.renewed = nil
	return renewed
}

// End ends all leases, and lets none begin any more.
func End(t *Set) {
	atomic.StoreInt32(&t.ended, 1)
	for _, s := range t.Stripes {
		s.Mu.Lock()
		for _, r := range s.Rows {
			if r.Limit != nil {
				settle(s, r)
				endLease(t, r)
				keep(t, s, r)
			}
		}
		s.Mu.Unlock()
	}
	Sweep(t)
}

// mostInterval is the longest time between two calls of Sweep, so that refunds are gathered for a tenth of a
// second at most.
const mostInterval = 100 * time.Millisecond

// Interval returns the time between two calls of Sweep.
func Interval(t *Set) time.Duration {
	d := time.Duration(atomic.LoadInt64(&t.shortestHorizon)) * time.Microsecond / 8
	if d > mostInterval {
		return mostInterval
	}
	return d
}

// Rest reports whether Options.Maintain may return, because no leases are left. If it reports true, the next
// lease starts Maintain again.
func Rest(t *Set) bool {
	if atomic.LoadInt64(&t.leases) > 0 {
		return false
	}
	atomic.StoreInt64(&t.shortestHorizon, t.horizon)
	atomic.StoreInt32(&t.maintaining, 0)
	return atomic.LoadInt64(&t.leases) == 0 || !atomic.CompareAndSwapInt32(&t.maintaining, 0, 1)
}
