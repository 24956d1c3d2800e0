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

// Cached is a remembered row. The mutex of its stripe guards all fields but ID.
type Cached struct {
	ID          RowID
	stripeIndex uint64 // the index in Set.Stripes
	hashIndex   uint64 // the index in Set.RowsBy and in Demand

	refusal *refusal      // nil without one
	lock    *lock         // nil without one
	local   *LocalCounter // nil without one
	counted bool          // Set.RowsBy and Set.RowCount count the row

	// Limit is the limit of the lease; nil without a lease. The interpreted plugin reads the fields up to
	// ResetText. When the plugin uses units, it subtracts them from Units and adds them to Used. The
	// remaining quota is Rest+Units. The units expire at Ends, measured from Set.Born. Used is the
	// number of units that hits used or missed since usedSince.
	Limit       *ratelimit.Limit
	Units, Rest int64
	Used        int64
	Ends        time.Duration
	Reset       time.Time // the Decision.Reset of an admitted hit, by the last answer
	// ResetText holds Reset by the clock of this process, in Unix seconds and rounded up, as the values of a
	// response header. Its only element does not change, because responses share it.
	ResetText []string

	claim            int64 // the claim of the units, see algorithm.Definition.Lease
	decidedAt        int64 // the algorithm.ChargedAt of the last answer (server's clock); 0 before the first
	drainPerLife     int64 // the expected drop of the remaining quota within maxLife
	begun            int64 // the time at which the lease began
	usedSince        int64 // the time of the last charge, or of the first hit that counts
	nextChargeAt     int64 // no units are charged before this time
	usedWhenExpiring int64 // Used when Sweep found that the units expire soon; -1 before
}

// Stripe holds one of StripeCount parts of a Set's rows, selected by the hash of their keys.
type Stripe struct {
	Mu      sync.Mutex // guards the fields below
	Rows    map[RowID]*Cached
	leased  map[RowID]*Cached // the rows with a lease
	refunds []Refund          // see Refunds
	cleared [8]int64          // the number of the last refund or reset, by bits of the hash; see Sequence
	Decided int64             // requests decided by Use
}

// StripeCount is the number of stripes of a Set. The interpreted plugin finds the stripe of a key in the same
// way as Find.
const StripeCount = 32

// Hashes is the length of the slices in which a Set counts rows and hits. The index of a row is the sum of
// the hashes of its key and its prefix, modulo Hashes. Rows with the same index are counted together.
const Hashes = 1 << 16

// CreditPerHit is the credit for a request that a worker decides from leases, after Set.Credit was used up.
// While there is credit, the interpreted plugin looks for the lease of a request before the request enters
// the queue. A request without a lease uses one unit of credit, so a search that seldom succeeds is seldom
// tried.
const CreditPerHit = 16

// Options configures a Set.
type Options struct {
	Max      int           // the maximum number of rows; KeepLocal raises it
	Refusals bool          // remember refusals
	Horizon  time.Duration // the maximum of the function Horizon
	MinHits  int           // see Set.MinHits
	Clock    func() int64  // replaces Now in tests; nil is the monotonic clock
	// Hash replaces maphash.String in simulations; nil is maphash.String.
	Hash func(seed maphash.Seed, key string) uint64
}

// Set holds the rows that a store remembers.
type Set struct {
	// The first fields are atomic. On a 32-bit processor, only the beginning of a struct is aligned for them.
	RowCount   int64 // the number of rows that can decide a hit: with a lease, a refusal, a lock, or owing
	LockCount  int64 // the number of rows with a lock
	OwingCount int64 // the number of rows that owe, see SetOwes

	// Sequence is the number of the last batch, refund or reset. A new batch adds 1, and passes the sum to
	// RememberRefusal. RememberRefusal ignores a refusal if Stripe.cleared has a higher number than the
	// batch, because the refusal may be older than a refund or reset of the row.
	Sequence int64

	Ahead int64 // the number of seconds by which the server's clock is ahead of this process

	hitsSince    int64 // the time at which hits began to count
	serverOffset int64 // the server's clock minus Now, in microseconds

	Stripes   []*Stripe
	RowsBy    []int32 // RowCount by the index of the rows, see Hashes; atomic
	Credit    int32   // see CreditPerHit; atomic
	Refunding int32   // 1 if Refunds has any to return; atomic
	Local     int32   // 1 after KeepLocal; atomic
	Seed      maphash.Seed
	Born      time.Time // the time at which Now was 0
	Hash      func(seed maphash.Seed, key string) uint64
	MinHits   int64 // the hits in a horizon for which a key gets a lease

	options Options
	half    int          // half of a stripe's part of Options.Max, rounded up
	horizon int64        // Options.Horizon in microseconds
	ended   int32        // 1 after EndAll; atomic
	hits    atomic.Value // the []int32 of Demand
}

// New returns an empty Set.
func New(o Options) *Set {
	s := &Set{Seed: maphash.MakeSeed(), Hash: maphash.String, Born: time.Now(), options: o,
		half:    (o.Max + 2*StripeCount - 1) / (2 * StripeCount),
		horizon: int64(o.Horizon / time.Microsecond), MinHits: int64(o.MinHits),
		RowsBy: make([]int32, Hashes)}
	if o.Hash != nil {
		s.Hash = o.Hash
	}
	for i := 0; i < StripeCount; i++ {
		s.Stripes = append(s.Stripes, &Stripe{Rows: map[RowID]*Cached{}, leased: map[RowID]*Cached{}})
	}
	s.hits.Store(make([]int32, Hashes))
	s.serverOffset = s.Born.UnixMicro()
	return s
}

// Now returns the time since Born in microseconds.
func Now(s *Set) int64 {
	if s.options.Clock != nil {
		return s.options.Clock()
	}
	return int64(time.Since(s.Born) / time.Microsecond)
}

// Find appends an element for each hit to rows: its row, or nil if the Set has none. If no row of the Set can
// decide a hit, Find appends nothing. The hits have stored keys.
func Find(s *Set, hits []ratelimit.Hit, rows []*Cached) []*Cached {
	if atomic.LoadInt64(&s.RowCount) == 0 {
		return rows
	}
	for i := range hits {
		h := &hits[i]
		stripe := s.Stripes[s.Hash(s.Seed, h.Key)%StripeCount]
		stripe.Mu.Lock()
		r := stripe.Rows[RowOf(h.Limit, h.Key)]
		stripe.Mu.Unlock()
		rows = append(rows, r)
	}
	return rows
}

// withCached calls f with the row id while it holds the mutex of the row's stripe. If the Set lacks the row,
// withCached adds it if add is set, and otherwise does not call f. Afterwards it refreshes the row.
func withCached(s *Set, id RowID, add bool, f func(r *Cached)) {
	hash := s.Hash(s.Seed, id.Key)
	stripe := s.Stripes[hash%StripeCount]
	stripe.Mu.Lock()
	r := stripe.Rows[id]
	if r == nil && add {
		r = addCached(s, stripe, id, hash)
	}
	if r != nil {
		f(r)
		refreshCached(s, stripe, r)
	}
	stripe.Mu.Unlock()
}

// indexOf returns the index of a row in Set.RowsBy and in Demand. hash is the hash of its key.
func indexOf(s *Set, prefix string, hash uint64) uint64 {
	return (s.Hash(s.Seed, prefix) + hash) % Hashes
}

// addCached adds a row. The caller holds the mutex of the stripe. It then sets a LocalCounter, or it sets a
// refusal, a lock or a lease and calls refreshCached.
func addCached(s *Set, stripe *Stripe, id RowID, hash uint64) *Cached {
	evictCached(s, stripe)
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &Cached{ID: id, stripeIndex: hash % StripeCount, hashIndex: indexOf(s, id.Prefix, hash)}
	stripe.Rows[id] = r
	return r
}

// evictCached deletes random rows without a lease from a stripe until there is room for another row. It
// spares a few rows that owe. The caller holds the mutex of the stripe.
func evictCached(s *Set, stripe *Stripe) {
	bound := s.half
	if atomic.LoadInt32(&s.Local) == 1 {
		bound *= localFactor
	}
	spared := 0
	for _, r := range stripe.Rows { // in random order
		if len(stripe.Rows)-len(stripe.leased) < bound {
			return
		}
		switch {
		case r.Limit != nil:
		case owes(r) && spared < maxSpared:
			spared++
		default:
			r.refusal = nil
			if r.local != nil {
				setOwes(s, r.local, false)
				r.local = nil
			}
			setLock(s, r, nil)
			refreshCached(s, stripe, r)
		}
	}
}

// refreshCached removes expired parts of a row, counts the row if it can decide a hit, and deletes it if
// nothing is left. Callers call it after each change of a row. They hold the mutex of the stripe.
func refreshCached(s *Set, stripe *Stripe, r *Cached) {
	now := Now(s)
	if r.refusal != nil && now >= r.refusal.expiresAt {
		r.refusal = nil
	}
	if r.lock != nil && now-r.lock.last >= lockExpiry {
		setLock(s, r, nil)
	}
	decides := r.Limit != nil || r.refusal != nil || r.lock != nil || owes(r)
	switch {
	case decides && !r.counted:
		atomic.AddInt32(&s.RowsBy[r.hashIndex], 1)
		atomic.AddInt64(&s.RowCount, 1)
	case r.counted && !decides:
		atomic.AddInt32(&s.RowsBy[r.hashIndex], -1)
		atomic.AddInt64(&s.RowCount, -1)
	}
	r.counted = decides
	if !decides && r.local == nil {
		delete(stripe.Rows, r.ID)
	}
}

// Figures holds counts of a Set.
type Figures struct {
	Refusals int64 // rows with a refusal
	Units    int64 // the units of all leases
	Decided  int64 // requests decided by leases
}

// eachStripe calls f with each stripe while it holds the stripe's mutex.
func eachStripe(s *Set, f func(stripe *Stripe)) {
	for _, stripe := range s.Stripes {
		stripe.Mu.Lock()
		f(stripe)
		stripe.Mu.Unlock()
	}
}

// Stats returns the counts of a Set. It also deletes rows that have expired.
func Stats(s *Set) Figures {
	f := Figures{}
	now := Now(s)
	eachStripe(s, func(stripe *Stripe) {
		f.Decided += stripe.Decided
		for _, r := range stripe.Rows {
			refreshCached(s, stripe, r)
			if r.refusal != nil && now < r.refusal.passesAt {
				f.Refusals++
			}
		}
		for _, r := range stripe.leased {
			f.Units += r.Units
		}
	})
	return f
}

// Clear ends all leases without refunds and deletes all refusals, because the tables may lack the charges.
func Clear(s *Set) {
	sequence := atomic.AddInt64(&s.Sequence, 1)
	eachStripe(s, func(stripe *Stripe) {
		for i := range stripe.cleared {
			stripe.cleared[i] = sequence
		}
		for _, r := range stripe.Rows {
			r.refusal = nil
			r.Units = 0
			endLease(s, r)
			refreshCached(s, stripe, r)
		}
		stripe.refunds = nil
	})
}
