package lease

import (
	"math/bits"
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

// maxLife returns the longest time for which units of a limit may be used after an answer, in microseconds.
func maxLife(s *Set, l *ratelimit.Limit) int64 { return Horizon(s, l) * 3 / 2 }

// Demand returns the numbers of hits on limits with leases, by the index of their rows; see Hashes. They
// start again at 0 after each Options.Horizon. The caller counts a hit by atomic.AddInt32 before it calls
// Use.
func Demand(s *Set) []int32 {
	now := Now(s)
	since := atomic.LoadInt64(&s.hitsSince)
	if now-since >= s.horizon && atomic.CompareAndSwapInt64(&s.hitsSince, since, now) {
		s.hits.Store(make([]int32, Hashes))
	}
	return s.hits.Load().([]int32)
}

// Use decides a request from leases if they have units for all of its hits. It then uses the units, sets
// decisions, and returns true. Otherwise it uses none, and decisions have no meaning. Use also begins
// leases, and refunds those near the end of the quota. rows must be empty. Use appends an element for each
// hit: its row, or nil if the Set has none. The hits have stored keys.
func Use(s *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Cached) ([]*Cached, bool) {
	now := Now(s)
	locked := uint32(0) // a bit for each stripe; all goroutines lock stripes in the same order
	for i := range hits {
		locked |= 1 << (s.Hash(s.Seed, hits[i].Key) % StripeCount)
	}
	for left := locked; left != 0; left &= left - 1 {
		s.Stripes[bits.TrailingZeros32(left)].Mu.Lock()
	}
	for i := range hits {
		rows = append(rows, findLease(s, &hits[i], now))
	}
	passed := 0
	for i := range hits {
		if useUnits(s, rows[i], &hits[i], passed == i, now, &decisions[i]) {
			passed++
		}
	}
	all := passed == len(hits)
	for i := 0; i < passed && !all; i++ {
		if !hits[i].Peek {
			rows[i].Units += hits[i].Cost
		}
	}
	if all {
		s.Stripes[rows[0].stripeIndex].Decided++
	}
	for left := locked; left != 0; left &= left - 1 {
		s.Stripes[bits.TrailingZeros32(left)].Mu.Unlock()
	}
	return rows, all
}

// findLease returns the row of a hit, or nil. If the row has no lease on the hit's limit, findLease begins
// one if that saves work. The caller holds the mutex of the stripe.
func findLease(s *Set, h *ratelimit.Hit, now int64) *Cached {
	hash := s.Hash(s.Seed, h.Key)
	stripe := s.Stripes[hash%StripeCount]
	r := stripe.Rows[RowOf(h.Limit, h.Key)]
	switch {
	case h.Limit.Lease <= 0 || h.Cost < 1:
	case r == nil || r.Limit == nil:
		return beginLease(s, stripe, r, h, hash, now)
	case r.Limit == h.Limit:
	case r.Limit.Equal(h.Limit):
		r.Limit = h.Limit // a reload makes new limits
	default:
		endLease(s, r)
		refreshCached(s, stripe, r)
	}
	return r
}

// useUnits decides a hit from the units of a lease, and reports whether the hit passes. It does not pass if
// the lease lacks units or an earlier hit of the request did not pass: useUnits then only counts its cost in
// Used, and near the end of the quota refunds the lease. The caller holds the mutex of the stripe.
func useUnits(s *Set, r *Cached, h *ratelimit.Hit, earlierPassed bool, now int64,
	d *ratelimit.Decision) bool {
	if r == nil || r.Limit != h.Limit || h.Cost < 1 {
		return false
	}
	passes := earlierPassed && r.Units >= h.Cost && time.Duration(now)*time.Microsecond < r.Ends
	if !passes && r.Rest-h.Cost <= r.drainPerLife {
		refundUnits(s, r, r.Units) // the database then decides by the whole quota
	}
	if !h.Peek {
		r.Used += h.Cost
		if passes {
			r.Units -= h.Cost
		}
	}
	if passes {
		*d = ratelimit.Decision{Allowed: true, Quota: h.Limit.Capacity(), Remaining: r.Rest + r.Units,
			Reset: r.Reset, DecidedAt: r.decidedAt, Source: ratelimit.FromLease}
	}
	return passes
}

// beginLease begins a lease without units if the row has Set.MinHits hits in a horizon, unless there are too
// many leases. The next charge for the row adds units according to these hits. beginLease returns the row,
// which may be new, or nil. The caller holds the mutex of the stripe.
func beginLease(s *Set, stripe *Stripe, r *Cached, h *ratelimit.Hit, hash uint64, now int64) *Cached {
	horizon := Horizon(s, h.Limit)
	since := atomic.LoadInt64(&s.hitsSince)
	hits := int64(atomic.LoadInt32(&s.hits.Load().([]int32)[indexOf(s, RowOf(h.Limit, h.Key).Prefix, hash)]))
	if h.Peek || horizon == 0 || hits < s.MinHits || hits*horizon < s.MinHits*(now-since) ||
		h.Cost > h.Limit.Capacity() || len(stripe.leased) >= s.half ||
		atomic.LoadInt32(&s.ended) != 0 {
		return r
	}
	if r == nil {
		r = addCached(s, stripe, RowOf(h.Limit, h.Key), hash)
	}
	r.Limit = h.Limit
	r.Used = (hits - 1) * h.Cost
	r.begun = now
	r.usedSince = since
	r.nextChargeAt = 0
	r.Ends = time.Duration(now+maxLife(s, h.Limit)) * time.Microsecond
	r.Rest = 0
	r.decidedAt = 0
	r.drainPerLife = 0
	r.usedWhenExpiring = -1
	stripe.leased[r.ID] = r
	refreshCached(s, stripe, r)
	return r
}
