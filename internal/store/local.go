package store

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// linger is the time without local decisions after which limits count as exact again.
const linger = 2 * time.Second

// counts is the Store that a Shares replaces. It is an interface because Yaegi confuses types that refer to
// each other.
type counts interface {
	// Held returns the number of a row's slots that requests of this process hold.
	Held(row lease.RowID) int64
	// Charge charges units of a row in the background, see engine.Store.Charge.
	Charge(subject string, row lease.RowID, l *ratelimit.Limit, units int64)
	// Answers reports whether the database answers for a subject.
	Answers(subject string) bool
	Ready() bool
	Unavailable() error
}

// Shares decides requests while the database makes no decisions, at a share of each limit for this process.
//
// It remembers rows of the database's last decisions, as an engine.RowObserver. During an outage, a row is
// divided by the number of proxies, both its used and its remaining quota. Together the proxies then admit
// about what the limit allows. Units that were admitted on durable limits become debts, which are charged
// after the outage. The database's next decision on a row replaces the share.
type Shares struct {
	remembering int32 // 1 after UseLocal; atomic
	proxies     int64 // the number of shares of each limit; atomic
	next        counts
	born        time.Time
	now         func() time.Time // the server's clock in tests, or nil

	mu          sync.Mutex // guards the fields below
	rows        map[lease.RowID]*row
	clockOffset int64 // the server's clock minus this machine's clock, in microseconds
	unpaid      []*debt
	charging    int64 // units of charges under way
	state       registry.Local
}

// newShares returns Shares for a store, which replace sets. now is the server's clock in tests, or nil.
func newShares(now func() time.Time) *Shares {
	return &Shares{proxies: 1, born: time.Now(), now: now, rows: map[lease.RowID]*row{}}
}

// replace sets the store that the Shares replaces. It is called once, before any decision.
func (s *Shares) replace(next counts) { s.next = next }

// UseLocal starts remembering the rows of decisions, for TakeLocal.
func (s *Shares) UseLocal() { atomic.StoreInt32(&s.remembering, 1) }

// SetProxies sets the number of proxies, this one included.
func (s *Shares) SetProxies(n int64) { atomic.StoreInt64(&s.proxies, n) }

// TakeLocal decides hits without the database, at this process's share of each limit. A limit has as many
// shares as the registry last counted proxies. cause is the error of the database's decision. TakeLocal
// reports false if the hits cannot be decided.
func (s *Shares) TakeLocal(cause error, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool {
	if ratelimit.ValidateHits(hits, decisions) != nil {
		return false
	}
	parts := float64(atomic.LoadInt64(&s.proxies))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.serverTime()
	t := newLocalTake(len(hits))
	for i := range hits {
		t.add(s, i, &hits[i], parts)
		if hits[i].Limit.Algorithm == ratelimit.InFlight {
			r := t.rows[i]
			r.row.Slots = atomic.LoadInt64(&r.slots) + s.next.Held(r.id)
			t.before[i] = r.row
		}
		t.times[i] = now
	}
	passes := algorithm.Decide(t.hits, t.states, t.times, decisions)
	s.count(parts, passes)
	// A statement that was sent may have charged the hits.
	owed := errors.Is(cause, ratelimit.ErrUnavailable) && !errors.Is(cause, engine.ErrSent)
	for i := range hits {
		h := &hits[i]
		d := &decisions[i]
		charged := h.Cost > 0 && !h.Peek && d.Allowed && (passes || h.Independent)
		switch {
		case charged && h.Limit.Algorithm == ratelimit.InFlight:
			t.rows[i].holdSlots(h)
		case charged && h.Limit.Durable && owed:
			s.addDebt(t.rows[i], h, &t.hits[i], &t.before[i], now)
		}
		// The units that passes proxies have used, if the others have used as much as this one.
		used := int64(float64(t.limits[i].Capacity()-d.Remaining) * parts)
		d.Quota = h.Limit.Capacity()
		d.Remaining = algorithm.Remaining(d.Quota, d.Quota-used)
		d.Source = ratelimit.FromMemory
		d.DecidedAt = 0 // nothing is settled: the database does not have the charge
		if t.states[i].Blank() && t.rows[i].debt == nil {
			delete(s.rows, t.rows[i].id)
		}
	}
	return true
}

// localTake holds the hits of a request on the shares of their limits, with their rows.
type localTake struct {
	limits []ratelimit.Limit
	hits   []ratelimit.Hit
	rows   []*row
	before []algorithm.Row
	states []*algorithm.Row
	times  []int64
}

func newLocalTake(n int) *localTake {
	return &localTake{
		limits: make([]ratelimit.Limit, n), hits: make([]ratelimit.Hit, n), rows: make([]*row, n),
		before: make([]algorithm.Row, n), states: make([]*algorithm.Row, n), times: make([]int64, n),
	}
}

// add adds the hit i on the share of its limit, with its row. The caller holds the mutex.
func (t *localTake) add(s *Shares, i int, h *ratelimit.Hit, parts float64) {
	t.limits[i] = algorithm.ShareLimit(h.Limit, parts)
	t.hits[i] = *h
	t.hits[i].Limit = &t.limits[i]
	if capacity := t.limits[i].Capacity(); h.Cost > capacity && h.Cost <= h.Limit.Capacity() {
		t.hits[i].Cost = capacity // else it could never pass
	}
	r := s.rowOf(lease.RowOf(h.Limit, h.StoredKey()))
	if !r.isShare {
		r.isShare = true
		algorithm.ShareRow(&r.row, parts)
		r.debt = nil // the next debt belongs to this share
	}
	t.rows[i] = r
	t.before[i] = r.row
	t.states[i] = &r.row
}

// Local describes the decisions of TakeLocal in the current or the last outage.
func (s *Shares) Local() registry.Local {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Tick charges debts and ends the time of local limits. The Registry calls it about once a second.
func (s *Shares) Tick() {
	s.ChargeDebts()
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.state.Last) >= linger && len(s.unpaid) == 0 && s.charging == 0 && s.next.Ready() &&
		s.next.Unavailable() == nil {
		s.state.On = false
	}
}
