package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// minHorizon is the shortest horizon of a lease, in microseconds. Shorter leases would end before they are
// used.
const minHorizon = 10000

// Horizon returns the time for which the units of a lease should last, in microseconds: a twentieth of the
// limit's window, at most Options.Horizon. It returns 0 for a limit without leases. A bucket that is refilled
// evenly has no leases: it gains no tokens while it is full, so an early charge would let it gain more.
func Horizon(s *Set, l *ratelimit.Limit) int64 {
	if l.Lease <= 0 || l.RefillsEvenly() {
		return 0
	}
	h := int64(l.Window/time.Microsecond) / 20
	if h > s.horizon {
		h = s.horizon
	}
	if h < minHorizon {
		return 0
	}
	return h
}

// maxLife returns the longest time for which units may be used after an answer, in microseconds.
func maxLife(r *Row) int64 { return r.horizon * 3 / 2 }

// Take decides a request from leases if the leases have units for all of its hits. It then uses the units,
// sets decisions, and returns true. Otherwise it uses none, and counts the demand for leases. It appends the
// row of each hit to rows, or nil for a hit without a row in the Set. The hits have stored keys.
func Take(s *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Row) ([]*Row, bool) {
	now := Now(s)
	all := true
	for i := range hits {
		h := &hits[i]
		hash := s.Hash(s.Seed, h.Key)
		stripe := s.Stripes[hash%StripeCount]
		stripe.Mu.Lock()
		r := stripe.Rows[RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}]
		switch {
		case h.Limit.Lease <= 0 || h.Cost < 1:
			all = false
		case r == nil || r.Limit == nil:
			all = false
			r = beginLease(s, stripe, r, h, hash, now)
		default:
			all = useUnits(s, stripe, r, h, all, now, &decisions[i]) && all
		}
		if all && i == len(hits)-1 {
			stripe.Decided++
		}
		stripe.Mu.Unlock()
		rows = append(rows, r)
	}
	if !all && len(hits) > 1 {
		returnUnits(s, hits, decisions, rows)
	}
	return rows, all
}

// useUnits decides a hit from the units of a lease, and reports whether the lease had enough. Otherwise, or
// if allowed is not set, it only counts the demand. The caller holds the mutex of the stripe.
func useUnits(s *Set, stripe *Stripe, r *Row, h *ratelimit.Hit, allowed bool, now int64,
	d *ratelimit.Decision) bool {
	if r.Limit != h.Limit {
		if !r.Limit.Equal(h.Limit) {
			endLease(s, r)
			refreshRow(s, stripe, r)
			return false
		}
		r.Limit = h.Limit // a reload makes new limits
	}
	if !allowed || r.N < h.Cost || time.Duration(now)*time.Microsecond >= r.Ends {
		if r.remaining-h.Cost <= r.drainPerLife {
			refundUnits(s, r, true) // near the limit, the database decides, after this refund
		}
		if !h.Peek {
			r.Used += h.Cost
		}
		return false
	}
	if !h.Peek {
		Renew(s, r, h.Cost)
		r.Used += h.Cost
		r.N -= h.Cost
	}
	*d = ratelimit.Decision{Allowed: true, Quota: h.Limit.Capacity(), Remaining: r.Rest + r.N, Reset: r.Reset,
		DecidedAt: r.answeredAt, Source: ratelimit.FromLease}
	return true
}

// returnUnits undoes useUnits for the hits of a request after the lease of another hit lacked units.
func returnUnits(s *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Row) {
	for i := range hits {
		h := &hits[i]
		if decisions[i].Source != ratelimit.FromLease || h.Peek {
			continue
		}
		r := rows[i]
		stripe := s.Stripes[r.stripeIndex]
		stripe.Mu.Lock()
		if r.Limit != nil {
			r.N += h.Cost
		} else {
			addRefund(s, Refund{r.ID, h.Limit, h.Cost, r.claim}, true)
		}
		stripe.Mu.Unlock()
	}
}

// Demand returns the number of hits on limits with leases, by the index of their rows; see Hashes. It starts
// again at 0 after each Options.Horizon. The caller counts a hit by atomic.AddInt32 before it calls Take.
func Demand(s *Set) []int32 {
	now := Now(s)
	since := atomic.LoadInt64(&s.hitsSince)
	if now-since >= s.horizon && atomic.CompareAndSwapInt64(&s.hitsSince, since, now) {
		s.hits.Store(make([]int32, Hashes))
	}
	return s.hits.Load().([]int32)
}

// beginLease starts a lease without units if the row has Set.MinHits hits in a horizon, unless there are too
// many leases. The next charge for the row adds units according to these hits. beginLease returns the row,
// which may be new, or nil. The caller holds the mutex of the stripe.
func beginLease(s *Set, stripe *Stripe, r *Row, h *ratelimit.Hit, hash uint64, now int64) *Row {
	horizon := Horizon(s, h.Limit)
	since := atomic.LoadInt64(&s.hitsSince)
	hits := int64(atomic.LoadInt32(&s.hits.Load().([]int32)[indexOf(s, h.Limit.Prefix, hash)]))
	if h.Peek || horizon == 0 || hits < s.MinHits || hits*horizon < s.MinHits*(now-since) ||
		h.Cost > h.Limit.Capacity() || len(stripe.leased) >= s.half ||
		atomic.LoadInt32(&s.ended) != 0 {
		return r
	}
	if r == nil {
		r = addRow(s, stripe, RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}, hash)
	}
	r.Limit = h.Limit
	r.horizon = horizon
	r.usedSince = since
	r.Used = hits * h.Cost
	r.costPerHit = h.Cost
	stripe.leased[r.ID] = r
	refreshRow(s, stripe, r)
	if s.options.Maintain != nil && atomic.CompareAndSwapInt32(&s.maintained, 0, 1) {
		go s.options.Maintain()
	}
	return r
}
