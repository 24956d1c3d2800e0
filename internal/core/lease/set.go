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

// RowOf returns the row of a stored key of a limit.
func RowOf(l *ratelimit.Limit, key string) RowID {
	if l.CountedAs != "" {
		return RowID{l.Durable, l.CountedAs, key}
	}
	return RowID{l.Durable, l.Prefix, key}
}

// Row is a remembered row. The mutex of its stripe guards all fields but ID.
type Row struct {
	ID          RowID
	stripeIndex uint64 // the index in Set.stripes
	hashIndex   uint64 // the index in Set.rowsBy and Set.hits

	refusal *refusal // nil without one
	lock    *lock    // nil without one
	state   *State   // nil without one
	counted bool     // Set.rowsBy and Set.rowCount count the row

	// limit is the limit of the lease; nil without a lease. n is the number of units. A hit that uses units
	// subtracts them from n and adds them to used. The remaining quota is rest+n. The units expire at ends,
	// measured from Set.born. used is the number of units that hits used or missed since usedSince.
	limit   *ratelimit.Limit
	n, rest int64
	used    int64
	ends    time.Duration
	reset   time.Time // the Decision.Reset of an admitted hit, by the last answer
	// resetText holds reset by the clock of this process, in Unix seconds and rounded up, as the values of a
	// response header. Its only element does not change, because responses share it.
	resetText []string

	claim            int64 // the claim of the units, see algorithm.Definition.Lease
	decidedAt        int64 // the algorithm.ChargedAt of the last answer (server's clock); 0 before the first
	drainPerLife     int64 // the expected drop of the remaining quota within maxLife
	begun            int64 // the time at which the lease began
	usedSince        int64 // the time of the last charge, or of the first hit that counts
	nextChargeAt     int64 // no units are charged before this time
	usedWhenExpiring int64 // used when Sweep found that the units expire soon; -1 before
}

// rowStripe holds one of stripeCount parts of a Set's rows, selected by the hash of their keys.
type rowStripe struct {
	mu      sync.Mutex // guards the fields below
	rows    map[RowID]*Row
	leased  map[RowID]*Row // the rows with a lease
	refunds []Refund       // see Refunds
	cleared [8]int64       // the sequence of the last refund or reset, by clearedIndex; see NextSequence
	decided int64          // requests decided by Use
}

// stripeCount is the number of stripes of a Set.
const stripeCount = 32

// hashes is the length of the slices in which a Set counts rows and hits. The index of a row is the sum of
// the hashes of its key and its prefix, modulo hashes. Rows with the same index are counted together.
const hashes = 1 << 16

// Options configures a Set.
type Options struct {
	Max      int           // the maximum number of rows; KeepStates raises it
	Refusals bool          // remember refusals
	Horizon  time.Duration // the maximum of the function Horizon
	MinHits  int           // the hits in a horizon for which a key gets a lease
	Clock    func() int64  // replaces Now in tests; nil is the monotonic clock
	// Hash replaces maphash.String in simulations; nil is maphash.String.
	Hash func(seed maphash.Seed, key string) uint64
}

// Set holds the rows that a store remembers.
type Set struct {
	// The first fields are atomic. On a 32-bit processor, only the beginning of a struct is aligned for them.
	rowCount     int64 // the number of rows that can decide a hit: with a lease, a refusal, a lock, or owing
	lockCount    int64 // the number of rows with a lock
	owingCount   int64 // the number of rows that owe, see SetOwes
	sequence     int64 // see NextSequence
	ahead        int64 // see Ahead
	hitsSince    int64 // the time at which hits began to count
	serverOffset int64 // the server's clock minus Now, in microseconds

	stripes   []*rowStripe
	rowsBy    []int32 // rowCount by the index of the rows, see hashes; atomic
	credit    int32   // see MayPass; atomic
	refunding int32   // 1 if Refunds has any to return; atomic
	states    int32   // 1 after KeepStates; atomic
	ended     int32   // 1 after EndAll; atomic
	seed      maphash.Seed
	born      time.Time // the time at which Now was 0
	hash      func(seed maphash.Seed, key string) uint64
	options   Options
	half      int          // half of a stripe's part of Options.Max, rounded up
	horizon   int64        // Options.Horizon in microseconds
	hits      atomic.Value // the []int32 of demand
}

// New returns an empty Set.
func New(o Options) *Set {
	s := &Set{seed: maphash.MakeSeed(), hash: maphash.String, born: time.Now(), options: o,
		half:    (o.Max + 2*stripeCount - 1) / (2 * stripeCount),
		horizon: int64(o.Horizon / time.Microsecond), rowsBy: make([]int32, hashes)}
	if o.Hash != nil {
		s.hash = o.Hash
	}
	for i := 0; i < stripeCount; i++ {
		s.stripes = append(s.stripes, &rowStripe{rows: map[RowID]*Row{}, leased: map[RowID]*Row{}})
	}
	s.hits.Store(make([]int32, hashes))
	s.serverOffset = s.born.UnixMicro()
	return s
}

// Now returns the time since born in microseconds.
func Now(s *Set) int64 {
	if s.options.Clock != nil {
		return s.options.Clock()
	}
	return int64(time.Since(s.born) / time.Microsecond)
}

// NextSequence returns the number of a new batch. RememberRefusal ignores a refusal of the batch if the row
// was refunded or reset since, because the refusal may be older.
func NextSequence(s *Set) int64 { return atomic.AddInt64(&s.sequence, 1) }

// Ahead returns where the caller stores the number of seconds by which the server's clock is ahead of this
// process; atomic.
func Ahead(s *Set) *int64 { return &s.ahead }

// Find appends an element for each hit to rows: its row, or nil if the Set has none. If no row of the Set can
// decide a hit, Find appends nothing. The hits have stored keys.
func Find(s *Set, hits []ratelimit.Hit, rows []*Row) []*Row {
	if atomic.LoadInt64(&s.rowCount) == 0 {
		return rows
	}
	for i := range hits {
		h := &hits[i]
		stripe := s.stripes[s.hash(s.seed, h.Key)%stripeCount]
		stripe.mu.Lock()
		r := stripe.rows[RowOf(h.Limit, h.Key)]
		stripe.mu.Unlock()
		rows = append(rows, r)
	}
	return rows
}

// withRow calls f with the row id while it holds the mutex of the row's stripe. If the Set lacks the row,
// withRow adds it if add is set, and otherwise does not call f. Afterwards it refreshes the row.
func withRow(s *Set, id RowID, add bool, f func(stripe *rowStripe, r *Row)) {
	hash := s.hash(s.seed, id.Key)
	stripe := s.stripes[hash%stripeCount]
	stripe.mu.Lock()
	r := stripe.rows[id]
	if r == nil && add {
		r = addRow(s, stripe, id, hash)
	}
	if r != nil {
		f(stripe, r)
		refreshRow(s, stripe, r)
	}
	stripe.mu.Unlock()
}

// indexOf returns the index of a row in Set.rowsBy and in demand. hash is the hash of its key.
func indexOf(s *Set, prefix string, hash uint64) uint64 {
	return (s.hash(s.seed, prefix) + hash) % hashes
}

// addRow adds a row. The caller holds the mutex of the stripe. It then sets a State, or it sets a refusal, a
// lock or a lease and calls refreshRow.
func addRow(s *Set, stripe *rowStripe, id RowID, hash uint64) *Row {
	evictRows(s, stripe)
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &Row{ID: id, stripeIndex: hash % stripeCount, hashIndex: indexOf(s, id.Prefix, hash)}
	stripe.rows[id] = r
	return r
}

// evictRows deletes random rows without a lease from a stripe until there is room for another row. It spares
// a few rows that owe. The caller holds the mutex of the stripe.
func evictRows(s *Set, stripe *rowStripe) {
	bound := s.half
	if atomic.LoadInt32(&s.states) == 1 {
		bound *= statesFactor
	}
	spared := 0
	for _, r := range stripe.rows { // in random order
		if len(stripe.rows)-len(stripe.leased) < bound {
			return
		}
		switch {
		case r.limit != nil:
		case owes(r) && spared < maxSpared:
			spared++
		default:
			r.refusal = nil
			if r.state != nil {
				setOwes(s, r.state, false)
				r.state = nil
			}
			setLock(s, r, nil)
			refreshRow(s, stripe, r)
		}
	}
}

// refreshRow removes expired parts of a row, counts the row if it can decide a hit, and deletes it if nothing
// is left. Callers call it after each change of a row. They hold the mutex of the stripe.
func refreshRow(s *Set, stripe *rowStripe, r *Row) {
	now := Now(s)
	if r.refusal != nil && now >= r.refusal.expiresAt {
		r.refusal = nil
	}
	if r.lock != nil && now-r.lock.last >= lockExpiry {
		setLock(s, r, nil)
	}
	decides := r.limit != nil || r.refusal != nil || r.lock != nil || owes(r)
	switch {
	case decides && !r.counted:
		atomic.AddInt32(&s.rowsBy[r.hashIndex], 1)
		atomic.AddInt64(&s.rowCount, 1)
	case r.counted && !decides:
		atomic.AddInt32(&s.rowsBy[r.hashIndex], -1)
		atomic.AddInt64(&s.rowCount, -1)
	}
	r.counted = decides
	if !decides && r.state == nil {
		delete(stripe.rows, r.ID)
	}
}

// Figures holds counts of a Set.
type Figures struct {
	Rows     int64 // all rows
	Deciding int64 // rows that can decide a hit
	Refusals int64 // rows with a refusal
	Leases   int64
	Units    int64 // the units of all leases
	Decided  int64 // requests decided by leases
}

// eachStripe calls f with each stripe while it holds the stripe's mutex.
func eachStripe(s *Set, f func(stripe *rowStripe)) {
	for _, stripe := range s.stripes {
		stripe.mu.Lock()
		f(stripe)
		stripe.mu.Unlock()
	}
}

// Stats returns the counts of a Set. It also deletes rows that have expired.
func Stats(s *Set) Figures {
	f := Figures{}
	now := Now(s)
	eachStripe(s, func(stripe *rowStripe) {
		f.Decided += stripe.decided
		f.Rows += int64(len(stripe.rows))
		for _, r := range stripe.rows {
			refreshRow(s, stripe, r)
			if r.refusal != nil && now < r.refusal.passesAt {
				f.Refusals++
			}
		}
		f.Leases += int64(len(stripe.leased))
		for _, r := range stripe.leased {
			f.Units += r.n
		}
	})
	f.Deciding = atomic.LoadInt64(&s.rowCount)
	return f
}

// Clear ends all leases without refunds and deletes all refusals, because the tables may lack the charges.
func Clear(s *Set) {
	sequence := atomic.AddInt64(&s.sequence, 1)
	eachStripe(s, func(stripe *rowStripe) {
		for i := range stripe.cleared {
			stripe.cleared[i] = sequence
		}
		for _, r := range stripe.rows {
			r.refusal = nil
			r.n = 0
			endLease(s, r)
			refreshRow(s, stripe, r)
		}
		stripe.refunds = nil
	})
}
