package store

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// While the database makes no decisions, a Store decides at a share of each limit for this process. It
// remembers the rows of the database's last decisions, as the engine.RowObserver of its engines. During an
// outage, the used and the remaining quota of a row are divided by the number of proxies, so that the proxies
// together admit about what the limit allows. Units that were admitted on durable limits become debts,
// which are charged after the outage. The database's next decision on a row replaces the share.

const (
	// linger is the time without local decisions after which limits count as exact again.
	linger = 2 * time.Second

	// maxRows bounds the rows that are remembered, at about 300 bytes each.
	maxRows = 50000
)

// row holds a row after the database's last decision, or after the last decision at this process's share.
type row struct {
	id        lease.RowID
	row       algorithm.Row
	decidedAt int64 // the server's time of the decision
	isShare   bool  // row is this process's share
	slots     int64 // the slots that requests hold of the share; atomic
	debt      *debt // the debt of the share, or nil
}

// UseLocal starts remembering the rows of decisions, for TakeLocal.
func (s *Store) UseLocal() { atomic.StoreInt32(&s.remembering, 1) }

// SetProxies sets the number of proxies, this one included.
func (s *Store) SetProxies(n int64) { atomic.StoreInt32(&s.proxies, int32(n)) }

// TakeLocal decides hits without the database, at this process's share of each limit. A limit has as many
// shares as the registry last counted proxies. cause is the error of the database's decision. TakeLocal
// reports false if the hits cannot be decided.
func (s *Store) TakeLocal(cause error, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool {
	if ratelimit.ValidateHits(hits, decisions) != nil {
		return false
	}
	parts := float64(atomic.LoadInt32(&s.proxies))
	limits := make([]ratelimit.Limit, len(hits)) // the shares
	shares := append([]ratelimit.Hit(nil), hits...)
	rows := make([]*row, len(hits))
	before := make([]algorithm.Row, len(hits))
	states := make([]*algorithm.Row, len(hits))
	times := make([]int64, len(hits))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.serverTime()
	for i := range hits {
		h := &hits[i]
		limits[i] = algorithm.ShareLimit(h.Limit, parts)
		shares[i].Limit = &limits[i]
		if capacity := limits[i].Capacity(); h.Cost > capacity && h.Cost <= h.Limit.Capacity() {
			shares[i].Cost = capacity // else it could never pass
		}
		r := s.shareOf(lease.RowOf(h.Limit, h.StoredKey()), parts)
		if h.Limit.Algorithm == ratelimit.InFlight {
			r.row.Slots = atomic.LoadInt64(&r.slots) + s.Held(r.id)
		}
		rows[i] = r
		before[i] = r.row
		states[i] = &r.row
		times[i] = now
	}
	passes := algorithm.Decide(shares, states, times, decisions)
	s.count(parts, passes)
	// A statement that was sent may have charged the hits.
	owed := errors.Is(cause, ratelimit.ErrUnavailable) && !errors.Is(cause, engine.ErrSent)
	for i := range hits {
		h := &hits[i]
		d := &decisions[i]
		charged := h.Cost > 0 && !h.Peek && d.Allowed && (passes || h.Independent)
		switch {
		case charged && h.Limit.Algorithm == ratelimit.InFlight:
			rows[i].holdSlots(h)
		case charged && h.Limit.Durable && owed:
			s.addDebt(rows[i], h, &shares[i], &before[i], now)
		}
		// The units that all proxies have used, if each proxy has used as much as this one.
		used := int64(float64(limits[i].Capacity()-d.Remaining) * parts)
		d.Quota = h.Limit.Capacity()
		d.Remaining = algorithm.Remaining(d.Quota, d.Quota-used)
		d.Source = ratelimit.FromMemory
		d.DecidedAt = 0 // no settlement follows, because the database lacks the charge
		if states[i].Blank() && rows[i].debt == nil {
			delete(s.rows, rows[i].id)
		}
	}
	return true
}

// Local describes the decisions of TakeLocal in the current or the last outage.
func (s *Store) Local() registry.Local {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// clock returns this machine's time in microseconds. It never goes back.
func (s *Store) clock() int64 { return s.born.Add(time.Since(s.born)).UnixMicro() }

// serverTime returns the server's time in microseconds. The caller holds the mutex.
func (s *Store) serverTime() int64 {
	if s.options.Now != nil {
		return s.options.Now().UnixMicro()
	}
	return s.clock() + s.clockOffset
}

// Observe implements engine.RowObserver. It is one loop, with the frequent case inline, for Yaegi.
func (s *Store) Observe(rows []engine.Row) {
	now := s.clock()
	s.mu.Lock()
	for i := range rows {
		view := rows[i].View
		r := s.rows[rows[i].ID]
		if r == nil {
			r = s.add(rows[i].ID)
		}
		if late := r.decidedAt - view.Now; late > 0 && late < lease.Trust {
			continue // the answer of an older batch: several may be under way
		}
		r.row = view.Row
		r.decidedAt = view.Now
		r.isShare = false
		s.clockOffset = view.Now - now
	}
	s.mu.Unlock()
}

// shareOf returns the row of a share, which may be new. The caller holds the mutex.
func (s *Store) shareOf(id lease.RowID, parts float64) *row {
	r := s.rows[id]
	if r == nil {
		r = s.add(id)
	}
	if !r.isShare {
		r.isShare = true
		algorithm.ShareRow(&r.row, parts)
		r.debt = nil // the next debt belongs to this share
	}
	return r
}

// add adds a row, and evicts another if there are too many. The caller holds the mutex.
func (s *Store) add(id lease.RowID) *row {
	if len(s.rows) >= maxRows {
		tries := 0
		for other, r := range s.rows { // in random order
			if tries++; r.debt == nil || tries > 16 {
				delete(s.rows, other)
				break
			}
		}
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &row{id: id}
	s.rows[id] = r
	return r
}

// count counts a decision at one of parts shares of each limit. The caller holds the mutex.
func (s *Store) count(parts float64, admitted bool) {
	now := time.Now()
	if !s.local.On {
		s.local = registry.Local{On: true, Since: now}
	}
	s.local.Last = now
	s.local.Parts = parts
	if admitted {
		s.local.Admitted++
	} else {
		s.local.Refused++
	}
}

// holdSlots passes the slots of an admitted hit to its Slot.
func (r *row) holdSlots(h *ratelimit.Hit) {
	cost := h.Cost
	atomic.AddInt64(&r.slots, cost)
	h.Slot.Hold(func() { atomic.AddInt64(&r.slots, -cost) })
}
