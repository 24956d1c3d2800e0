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

// demand returns the numbers of hits on limits with leases, by the index of their rows; see hashes. They
// start again at 0 after each Options.Horizon.
func demand(s *Set) []int32 {
	now := Now(s)
	since := atomic.LoadInt64(&s.hitsSince)
	if now-since >= s.horizon && atomic.CompareAndSwapInt64(&s.hitsSince, since, now) {
		s.hits.Store(make([]int32, hashes))
	}
	return s.hits.Load().([]int32)
}

// Search finds out which requests of a batch may have a remembered row.
type Search struct {
	// Empty is set if no row can decide a hit. Requests without leases then need no MayHaveRow.
	Empty bool

	set    *Set
	demand []int32          // nil before the first request with leases
	limit  *ratelimit.Limit // the previous hit's limit
	prefix uint64           // the hash of limit's prefix
}

// NewSearch begins a Search.
func NewSearch(s *Set) *Search { return &Search{Empty: atomic.LoadInt64(&s.rowCount) == 0, set: s} }

// MayHaveRow reports whether a request may have a remembered row, or become busy enough for a lease. leases
// is set for a request that leases may decide: MayHaveRow counts its hits, so Use follows. The hits have
// stored keys.
func MayHaveRow(search *Search, hits []ratelimit.Hit, leases bool) bool {
	s := search.set
	if leases && search.demand == nil {
		search.demand = demand(s)
	}
	may := false
	for i := range hits {
		h := &hits[i]
		if h.Limit != search.limit {
			search.limit = h.Limit
			search.prefix = s.hash(s.seed, RowOf(h.Limit, h.Key).Prefix)
		}
		at := (s.hash(s.seed, h.Key) + search.prefix) % hashes
		if leases && int(atomic.AddInt32(&search.demand[at], 1)) >= s.options.MinHits {
			may = true
		} else if atomic.LoadInt32(&s.rowsBy[at]) > 0 {
			may = true
		}
	}
	return may
}

// creditPerHit is the credit for a request that a worker decides from leases, see MayPass.
const creditPerHit = 16

// AddCredit adds the credit for a number of requests that a worker has decided by Use.
func AddCredit(s *Set, decided int) {
	if atomic.LoadInt32(&s.credit) <= 0 {
		atomic.StoreInt32(&s.credit, int32(decided*creditPerHit))
	}
}

// MayPass reports whether there is credit. While there is, a proxy calls UseOne before a request enters the
// queue. A request without units uses one unit of credit, so a search that seldom succeeds is seldom tried.
func MayPass(s *Set) bool { return atomic.LoadInt32(&s.credit) > 0 }

// UseOne uses units of the lease of a row for one hit. It returns the remaining quota, and Decision.Reset as
// the values of a response header, which do not change. It returns 0 and nil if the lease lacks units: Use
// then decides the hit.
func UseOne(s *Set, id RowID, l *ratelimit.Limit, cost int64) (int64, []string) {
	stripe := s.stripes[s.hash(s.seed, id.Key)%stripeCount]
	stripe.mu.Lock()
	r := stripe.rows[id]
	if r == nil || r.limit != l || r.n < cost || time.Duration(Now(s))*time.Microsecond >= r.ends {
		stripe.mu.Unlock()
		atomic.AddInt32(&s.credit, -1)
		return 0, nil
	}
	r.n -= cost
	r.used += cost
	left := r.rest + r.n
	reset := r.resetText
	stripe.mu.Unlock()
	return left, reset
}

// Use decides a request from leases if they have units for all of its hits. It then uses the units, sets
// decisions, and returns true. Otherwise it uses none, and decisions have no meaning. Use also begins
// leases, and refunds those near the end of the quota. rows must be empty. Use appends an element for each
// hit: its row, or nil if the Set has none. The hits have stored keys.
func Use(s *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Row) ([]*Row, bool) {
	now := Now(s)
	locked := uint32(0) // a bit for each stripe; all goroutines lock stripes in the same order
	for i := range hits {
		locked |= 1 << (s.hash(s.seed, hits[i].Key) % stripeCount)
	}
	for left := locked; left != 0; left &= left - 1 {
		s.stripes[bits.TrailingZeros32(left)].mu.Lock()
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
			rows[i].n += hits[i].Cost
		}
	}
	if all {
		s.stripes[rows[0].stripeIndex].decided++
	}
	for left := locked; left != 0; left &= left - 1 {
		s.stripes[bits.TrailingZeros32(left)].mu.Unlock()
	}
	return rows, all
}

// findLease returns the row of a hit, or nil. If the row has no lease on the hit's limit, findLease begins
// one if that saves work. The caller holds the mutex of the stripe.
func findLease(s *Set, h *ratelimit.Hit, now int64) *Row {
	hash := s.hash(s.seed, h.Key)
	stripe := s.stripes[hash%stripeCount]
	r := stripe.rows[RowOf(h.Limit, h.Key)]
	switch {
	case h.Limit.Lease <= 0 || h.Cost < 1:
	case r == nil || r.limit == nil:
		return beginLease(s, stripe, r, h, hash, now)
	case r.limit == h.Limit:
	case r.limit.Equal(h.Limit):
		r.limit = h.Limit // a reload makes new limits
	default:
		endLease(s, r)
		refreshRow(s, stripe, r)
	}
	return r
}

// useUnits decides a hit from the units of a lease, and reports whether the hit passes. It does not pass if
// the lease lacks units or an earlier hit of the request did not pass: useUnits then only counts its cost in
// Used, and near the end of the quota refunds the lease. The caller holds the mutex of the stripe.
func useUnits(s *Set, r *Row, h *ratelimit.Hit, earlierPassed bool, now int64, d *ratelimit.Decision) bool {
	if r == nil || r.limit != h.Limit || h.Cost < 1 {
		return false
	}
	passes := earlierPassed && r.n >= h.Cost && time.Duration(now)*time.Microsecond < r.ends
	if !passes && r.rest-h.Cost <= r.drainPerLife {
		refundUnits(s, r, r.n) // the database then decides by the whole quota
	}
	if !h.Peek {
		r.used += h.Cost
		if passes {
			r.n -= h.Cost
		}
	}
	if passes {
		*d = ratelimit.Decision{Allowed: true, Quota: h.Limit.Capacity(), Remaining: r.rest + r.n,
			Reset: r.reset, DecidedAt: r.decidedAt, Source: ratelimit.FromLease}
	}
	return passes
}

// beginLease begins a lease without units if the row has Options.MinHits hits in a horizon, unless there are
// too many leases. The next charge for the row adds units according to these hits. beginLease returns the
// row, which may be new, or nil. The caller holds the mutex of the stripe.
func beginLease(s *Set, stripe *rowStripe, r *Row, h *ratelimit.Hit, hash uint64, now int64) *Row {
	horizon := Horizon(s, h.Limit)
	since := atomic.LoadInt64(&s.hitsSince)
	at := indexOf(s, RowOf(h.Limit, h.Key).Prefix, hash)
	hits := int64(atomic.LoadInt32(&s.hits.Load().([]int32)[at]))
	minHits := int64(s.options.MinHits)
	if h.Peek || horizon == 0 || hits < minHits || hits*horizon < minHits*(now-since) ||
		h.Cost > h.Limit.Capacity() || len(stripe.leased) >= s.half ||
		atomic.LoadInt32(&s.ended) != 0 {
		return r
	}
	if r == nil {
		r = addRow(s, stripe, RowOf(h.Limit, h.Key), hash)
	}
	r.limit = h.Limit
	r.used = (hits - 1) * h.Cost
	r.begun = now
	r.usedSince = since
	r.nextChargeAt = 0
	r.ends = time.Duration(now+maxLife(s, h.Limit)) * time.Microsecond
	r.rest = 0
	r.decidedAt = 0
	r.drainPerLife = 0
	r.usedWhenExpiring = -1
	stripe.leased[r.ID] = r
	refreshRow(s, stripe, r)
	return r
}
