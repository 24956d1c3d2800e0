package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// demandCount counts the demand for one key without a lease, in memory that does not grow. If two keys have
// one demandCount, it stays with the key that has more hits. Their costs are added up.
type demandCount struct {
	hash  uint64
	since int64
	hits  int64
	cost  int64
}

const (
	stripeDemands = 512

	// leastHits is the number of hits in a horizon with which a key gets a lease. A lease with half as many
	// hits is not renewed.
	leastHits = 4

	// leastHorizon is the shortest horizon in microseconds. A limit with a shorter one gets no leases: they
	// would end before they are used.
	leastHorizon = 10000
)

// Horizon returns how far ahead the leases of a limit are sized, in microseconds: Options.Horizon, or a
// twentieth of the window. It returns 0 for a limit without leases: a bucket that is refilled evenly gains no
// tokens while it is full, so an early charge would let it gain more.
func Horizon(t *Set, l *ratelimit.Limit) int64 {
	if l.Lease <= 0 || l.RefillsEvenly() {
		return 0
	}
	h := int64(l.Window/time.Microsecond) / 20
	if h > t.horizon {
		h = t.horizon
	}
	if h < leastHorizon {
		return 0
	}
	return h
}

// mostLife returns how long units may be used after an answer at most, in microseconds.
func mostLife(r *Row) int64 { return r.horizon * 3 / 2 }

// Take decides a request from leases if all of its hits have their units: it then uses them all, writes the
// decisions, and returns true. Otherwise it uses none, and counts the demand. It appends the row of each hit
// to rows, or nil for one that is not remembered. Keys are as they are stored.
func Take(t *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Row) ([]*Row, bool) {
	now := Now(t)
	all := true
	for i := range hits {
		h := &hits[i]
		hash := t.Hash(t.Seed, h.Key)
		s := t.Stripes[hash%StripeCount]
		s.Mu.Lock()
		r := s.Rows[RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}]
		switch {
		case h.Limit.Lease <= 0 || h.Cost < 1:
			all = false
		case r == nil || r.Limit == nil:
			all = false
			r = demand(t, s, r, h, hash, now)
		default:
			all = use(t, s, r, h, all, now, &decisions[i]) && all
		}
		if all && i == len(hits)-1 {
			s.taken++
		}
		s.Mu.Unlock()
		rows = append(rows, r)
	}
	if !all && len(hits) > 1 {
		undo(t, hits, decisions, rows)
	}
	return rows, all
}

// use uses the units of a lease for a hit, and decides it, if the lease has its cost. It counts the demand if
// not, or if may is not set. The caller holds the mutex of the stripe.
func use(t *Set, s *Stripe, r *Row, h *ratelimit.Hit, may bool, now int64, d *ratelimit.Decision) bool {
	if r.Limit != h.Limit {
		if !r.Limit.Equal(h.Limit) {
			endLease(t, r)
			keep(t, s, r)
			return false
		}
		r.Limit = h.Limit // a reload makes new limits
	}
	settle(s, r)
	if !may || r.N < h.Cost || time.Duration(now)*time.Microsecond >= r.Ends {
		if r.free-h.Cost <= r.lost {
			refundUnits(t, r, true) // near the limit the database decides. The refund comes before the hit
		}
		if !h.Peek {
			r.used += h.Cost
		}
		return false
	}
	if !h.Peek {
		Renew(t, r, h.Cost)
		r.used += h.Cost
		r.N -= h.Cost
		r.counted = r.N
	}
	*d = ratelimit.Decision{Allowed: true, Limit: h.Limit.Capacity(), Remaining: r.Rest + r.N, Reset: r.Reset,
		DecidedAt: r.answered, Source: ratelimit.FromLease}
	return true
}

// undo returns to the leases the units that hits of a request have used.
func undo(t *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision, rows []*Row) {
	for i := range hits {
		h := &hits[i]
		if decisions[i].Source != ratelimit.FromLease || h.Peek {
			continue
		}
		r := rows[i]
		s := t.Stripes[r.stripe]
		s.Mu.Lock()
		settle(s, r)
		if r.Limit != nil {
			r.N += h.Cost
			r.counted = r.N
		} else {
			addRefund(t, Refund{r.ID, h.Limit, h.Cost, r.claim}, true)
		}
		s.Mu.Unlock()
	}
}

// settle counts what the plugin has used. The caller holds the mutex of the stripe.
func settle(s *Stripe, r *Row) {
	used := r.counted - r.N
	r.used += used
	s.taken += used
	r.counted = r.N
}

// demand counts a hit on a row without a lease. If its key has shown demand, a lease without units begins. It
// returns the row, or nil. The caller holds the mutex of the stripe.
func demand(t *Set, s *Stripe, r *Row, h *ratelimit.Hit, hash uint64, now int64) *Row {
	if h.Limit != s.limit {
		s.limit = h.Limit
		s.horizon = Horizon(t, h.Limit)
	}
	if s.horizon == 0 || h.Peek {
		return r
	}
	c := &s.demands[hash/StripeCount%stripeDemands]
	if c.hits == 0 || now-c.since > s.horizon {
		c.hash = hash
		c.since = now
		c.hits = 1
		c.cost = h.Cost
		return r
	}
	if c.hash != hash {
		c.hits--
		return r
	}
	c.hits++
	c.cost += h.Cost
	if c.hits < leastHits {
		return r
	}
	return begin(t, s, r, h, hash, c)
}

// begin begins a lease without units by the demand for it, unless there are too many. It returns the row, or
// nil. The caller holds the mutex of the stripe.
func begin(t *Set, s *Stripe, r *Row, h *ratelimit.Hit, hash uint64, c *demandCount) *Row {
	if h.Cost > h.Limit.Capacity() || atomic.LoadInt64(&t.leases) >= half(t) ||
		atomic.LoadInt32(&t.ended) != 0 {
		return r
	}
	if r == nil {
		r = addRow(t, s, RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}, hash%StripeCount)
	}
	r.Limit = h.Limit
	r.horizon = s.horizon
	r.since = c.since
	r.used = c.cost
	r.perHit = c.cost / c.hits
	*c = demandCount{}
	keep(t, s, r)
	atomic.AddInt64(&t.leases, 1)
	for {
		shortest := atomic.LoadInt64(&t.shortestHorizon)
		if r.horizon >= shortest || atomic.CompareAndSwapInt64(&t.shortestHorizon, shortest, r.horizon) {
			break
		}
	}
	if t.options.Maintain != nil && atomic.CompareAndSwapInt32(&t.maintaining, 0, 1) {
		go t.options.Maintain()
	}
	return r
}
