package lease

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// RowID names a row of either table.
type RowID struct {
	Durable     bool
	Prefix, Key string
}

// RowOf returns the row of a key of a limit. The key is as it is stored.
func RowOf(l *ratelimit.Limit, key string) RowID { return RowID{l.Durable, l.Prefix, key} }

// Row holds the state of a row that a process remembers. The mutex of its stripe guards all fields but ID.
type Row struct {
	ID     RowID
	stripe uint64 // its index in Set.Stripes
	gone   bool   // the row was deleted from its stripe
	plain  bool   // the row is in Set.plain

	refusal *refusal // nil without one
	lock    *lock    // nil without one
	tight   int64    // the time of Now until which a transaction on the row looks before it takes

	// Limit is that of the lease; nil without one. The interpreted plugin reads the next fields and
	// decrements N. Rest+N of the quota are left. Units are not used from Ends on, a time since Set.Born. A
	// hit that would leave less than Floor calls Renew first.
	Limit          *ratelimit.Limit
	N, Floor, Rest int64
	Ends           time.Duration
	Reset          time.Time // Decision.Reset of a hit that the last answer would admit
	ResetText      string    // Reset in Unix seconds, rounded up, as a response header has it

	horizon  int64 // Horizon of Limit
	claim    int64 // of the units, see algorithm.Definition.Lease
	free     int64 // what was left in the last answer, without the units of the lease
	known    bool  // there was an answer
	answered int64 // the time of the last answer by algorithm.ChargedAt, in microseconds
	lost     int64 // what the row loses in a life of units, by the answers
	counted  int64 // N without what the plugin has used since settle
	used     int64 // units that hits used or lacked since the time in since
	swept    int64 // what used was when Sweep saw the lease last
	since    int64 // when the lease began, or units were asked for last
	asked    int64 // no units are asked for before this time
	asks     int64 // how many units the lease had after the last charge
	gained   int64 // how many of the units were charged last
	gainedAt int64 // when they came
	perHit   int64 // the mean cost of the hits that began the lease
}

// Stripe is a division of a Set: the rows of the keys with the same remainder of their hash.
type Stripe struct {
	Mu      sync.Mutex // guards all that follows
	Rows    map[RowID]*Row
	demands []demandCount
	limit   *ratelimit.Limit // of the last hit without a lease
	horizon int64            // Horizon of limit
	cleared [8]int64         // see Begin
	taken   int64            // requests that leases have decided
}

// StripeCount is the number of stripes of a Set. The interpreted plugin finds the stripe of a key as Find
// does.
const StripeCount = 32

// Options configure a Set.
type Options struct {
	Max      int           // the most rows
	Refusals bool          // rows are remembered that refuse
	Horizon  time.Duration // of limits with long windows
	Clock    func() int64  // replaces Now in tests; nil does not
	Maintain func()        // runs in a goroutine while there are leases; it calls Sweep
	Refund   func(Refund)  // makes a refund; it is called with a mutex of the Set
	// Hash replaces maphash.String in simulations; nil does not.
	Hash func(seed maphash.Seed, key string) uint64
}

// Set holds the rows that a process remembers.
type Set struct {
	Stripes []*Stripe
	Seed    maphash.Seed
	Born    time.Time // when Now was 0
	Hash    func(seed maphash.Seed, key string) uint64

	options         Options
	horizon         int64 // Options.Horizon in microseconds
	rows            int64 // the number of rows; atomic
	plain           int64 // of those, the ones without a lease; atomic
	locks           int64 // the number of rows with a lock; atomic
	tight           int64 // the number of rows that are or were tight; atomic
	leases          int64 // the number of leases; atomic
	hand            int64 // the stripe from which the next row is evicted; atomic
	sequence        int64 // see Begin; atomic
	maintaining     int32 // 1 while Options.Maintain runs; atomic
	ended           int32 // 1 after End; atomic
	shortestHorizon int64 // of all leases so far; atomic
	swept           int64 // when Sweep has seen all leases last; atomic

	mu      sync.Mutex // guards the fields below; taken after that of a stripe
	refunds []Refund
	renewed []*Row // leases that need further units
}

// New returns a Set without rows.
func New(o Options) *Set {
	t := &Set{Seed: maphash.MakeSeed(), Hash: maphash.String, Born: time.Now(), options: o,
		horizon: int64(o.Horizon / time.Microsecond)}
	if o.Hash != nil {
		t.Hash = o.Hash
	}
	t.shortestHorizon = t.horizon
	for i := 0; i < StripeCount; i++ {
		t.Stripes = append(t.Stripes,
			&Stripe{Rows: map[RowID]*Row{}, demands: make([]demandCount, stripeDemands)})
	}
	return t
}

// Now returns the time since Born in microseconds.
func Now(t *Set) int64 {
	if t.options.Clock != nil {
		return t.options.Clock()
	}
	return int64(time.Since(t.Born) / time.Microsecond)
}

// Empty reports whether no rows are remembered.
func Empty(t *Set) bool { return atomic.LoadInt64(&t.rows) == 0 }

// Find appends the row of each hit to rows, or nil for one that is not remembered. Keys are as they are
// stored.
func Find(t *Set, hits []ratelimit.Hit, rows []*Row) []*Row {
	if atomic.LoadInt64(&t.rows) == 0 {
		return rows
	}
	for i := range hits {
		h := &hits[i]
		s := t.Stripes[t.Hash(t.Seed, h.Key)%StripeCount]
		s.Mu.Lock()
		r := s.Rows[RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}]
		s.Mu.Unlock()
		rows = append(rows, r)
	}
	return rows
}

// change locks the stripe of a row, runs f with the row, counts it, and evicts others if there are too many.
// It adds a row that is not remembered if add is set. f is not called without a row.
func change(t *Set, id RowID, add bool, f func(s *Stripe, r *Row)) {
	hash := t.Hash(t.Seed, id.Key)
	s := t.Stripes[hash%StripeCount]
	s.Mu.Lock()
	r := s.Rows[id]
	if r == nil && add {
		r = addRow(t, s, id, hash%StripeCount)
	}
	if r != nil {
		f(s, r)
		keep(t, s, r)
	}
	s.Mu.Unlock()
	if add {
		trim(t, r)
	}
}

// addRow adds a row. The caller holds the mutex of the stripe, and calls keep and trim.
func addRow(t *Set, s *Stripe, id RowID, stripe uint64) *Row {
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &Row{ID: id, stripe: stripe, plain: true}
	s.Rows[id] = r
	atomic.AddInt64(&t.rows, 1)
	atomic.AddInt64(&t.plain, 1)
	return r
}

// keep counts a row after a change, and deletes it if it holds nothing any more. The caller holds the mutex
// of the stripe.
func keep(t *Set, s *Stripe, r *Row) {
	if r.gone {
		return
	}
	now := Now(t)
	if r.refusal != nil && now >= r.refusal.end() {
		r.refusal = nil
	}
	if r.lock != nil && now-r.lock.last >= longMemory {
		setLock(t, r, nil)
	}
	if r.tight != 0 && now >= r.tight {
		setTight(t, r, 0)
	}
	plain := r.Limit == nil
	if plain != r.plain {
		r.plain = plain
		if plain {
			atomic.AddInt64(&t.plain, 1)
		} else {
			atomic.AddInt64(&t.plain, -1)
		}
	}
	if plain && r.refusal == nil && r.lock == nil && r.tight == 0 {
		r.gone = true
		delete(s.Rows, r.ID)
		atomic.AddInt64(&t.rows, -1)
		atomic.AddInt64(&t.plain, -1)
	}
}

// half returns how many rows may have a lease, and how many may have none.
func half(t *Set) int64 { return int64(t.options.Max+1) / 2 }

// trim evicts rows without a lease until there are no more than half of Options.Max. It spares one row. The
// caller holds no mutex.
func trim(t *Set, spared *Row) {
	for tries := 0; tries < 4*StripeCount && atomic.LoadInt64(&t.plain) > half(t); tries++ {
		s := t.Stripes[atomic.AddInt64(&t.hand, 1)%StripeCount]
		s.Mu.Lock()
		evict(t, s, spared)
		s.Mu.Unlock()
	}
}

// evict deletes a row of a stripe without a lease: one among a few that holds nothing any more, or else any.
// It spares one row. The caller holds the mutex of the stripe. Iteration over a map starts at random.
func evict(t *Set, s *Stripe, spared *Row) {
	steps := 0
	var evicted *Row
	for _, r := range s.Rows {
		if r == spared || !r.plain {
			continue
		}
		evicted = r
		keep(t, s, r)
		if steps++; steps == 16 || r.gone {
			break
		}
	}
	if evicted != nil {
		evicted.refusal = nil
		setLock(t, evicted, nil)
		setTight(t, evicted, 0)
		keep(t, s, evicted)
	}
}

// Figures count what a Set holds.
type Figures struct {
	Refusing int64 // rows with a refusal
	Leases   int64
	Units    int64 // of all leases
	Taken    int64 // requests that leases have decided, those of the interpreted plugin in units
}

// Look returns what a Set holds, and deletes the rows that hold nothing any more.
func Look(t *Set) Figures {
	f := Figures{}
	for _, s := range t.Stripes {
		s.Mu.Lock()
		for _, r := range s.Rows {
			keep(t, s, r)
			if r.refusal != nil {
				f.Refusing++
			}
			if r.Limit != nil {
				settle(s, r)
				f.Leases++
				f.Units += r.N
			}
		}
		f.Taken += s.taken
		s.Mu.Unlock()
	}
	return f
}

// Forget forgets all rows without a refund, because the tables may lack what was charged.
func Forget(t *Set) {
	sequence := Begin(t)
	for _, s := range t.Stripes {
		s.Mu.Lock()
		for i := range s.cleared {
			s.cleared[i] = sequence
		}
		for _, r := range s.Rows {
			r.refusal = nil
			r.N = 0
			r.counted = 0
			setTight(t, r, 0)
			endLease(t, r)
			keep(t, s, r)
		}
		s.Mu.Unlock()
	}
	t.mu.Lock()
	t.refunds = nil
	t.renewed = nil
	t.mu.Unlock()
}
