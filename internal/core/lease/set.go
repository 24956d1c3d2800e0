package lease

import (
	"hash/maphash"
	"math"
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

// RowOf is the row of a key of a limit. The key is as it is stored.
func RowOf(l *ratelimit.Limit, key string) RowID { return RowID{l.Durable, l.Prefix, key} }

// Units are units of a row that were charged together.
type Units struct {
	N     int64 // how many are left
	Ends  int64 // the time of the lease clock from which on they are not used
	Claim int64 // see algorithm.Definition.Lease
	Since int64 // the time of the lease clock when the lease got them
}

// Lease is what a process holds of a row. The mutex of its shard guards it.
type Lease struct {
	Limit *ratelimit.Limit
	First Units // used before Then
	Then  Units

	// The row in the last answer: what was left, the held units not included, and Decision.Reset
	// of a hit that is not refused.
	Free  int64
	Reset time.Time
	// ResetText is Reset in Unix seconds, rounded up, as a response header has it.
	ResetText string

	// The interpreted plugin may use Spare units until SpareEnds of the lease clock, without another
	// check. Units of First go first. Rest+Spare is what is left of the quota. spare sets these fields,
	// and settle counts what the plugin has used.
	Spare, Rest int64
	SpareEnds   time.Duration
	spared      int64 // what Spare was

	known    bool  // there was an answer
	answered int64 // Answer.Now of the last one
	lost     int64 // what the row loses in a life of units, by the answers: less is left near the limit
	void     bool  // the row was reset: units that were asked for before are not given back

	Low  int64 // a renewal is wanted when no more than this is held
	Used int64 // units that hits wanted since the time in the field since
	size int64 // what was held after the last charge

	perHit int64 // the mean cost of the hits that began the lease
	idle   bool  // too few hits for a further charge

	// since and asked are times of the lease clock. No further charge is asked for before asked.
	since, asked int64
	row          RowID
}

// Shard is a part of a Set: the rows of the keys with the same hash.
type Shard struct {
	Mu      sync.Mutex // guards all that follows
	Rows    map[RowID]*Lease
	demands []demandCount
	ended   bool  // no lease begins
	Taken   int64 // requests that were decided
}

// demandCount counts the demand for one key without a lease, in memory that does not grow. If two
// keys have one demandCount, it stays with the key that has more hits.
type demandCount struct {
	hash  uint64
	since int64
	hits  int64
	cost  int64
}

// ShardCount is how many shards a set has. It is a power of two. The interpreted plugin finds a
// key's shard as shardOf does.
const ShardCount = 32

const (
	shardDemands = 512

	// leastHits is how many hits a key must have in a horizon to get a lease: a charge and a refund cost as much as
	// the decisions of about so many. A lease with half as many hits is not renewed.
	leastHits = 4

	// leastHorizon is the shortest horizon in microseconds. A limit with a shorter one gets
	// no leases: they would end before they are used.
	leastHorizon = 10000

	// batchWork is how many charges go with a batch, and how many refunds: more would delay
	// its requests.
	batchWork = 500
)

// Options are the parts of a Set.
type Options struct {
	Max      int           // the most leases
	Horizon  time.Duration // of limits with long windows
	Clock    func() int64  // replaces the lease clock, for tests; nil is the monotonic clock
	Maintain func()        // runs in a goroutine while there are leases, see Maintain
}

// Set is the leases of a process.
type Set struct {
	Shards []*Shard
	Seed   maphash.Seed
	Born   time.Time // when Now was 0

	// Hash is maphash.String, except in a simulation.
	Hash func(seed maphash.Seed, key string) uint64

	max int64
	// the most wants, and the most returns: further wants are not asked for, further returns are lost
	most            int
	horizon         int64 // microseconds
	clock           func() int64
	maintain        func()
	count           int64 // of leases; atomic
	maintaining     int32 // 1 while maintain runs; atomic
	shortestHorizon int64 // of any lease so far; atomic

	mu      sync.Mutex // guards what follows; taken after that of a shard
	wants   []RowID
	returns []Return
	dueAt   int64 // when a batch is to take wants and returns
}

// New returns a set without leases.
func New(o Options) *Set {
	t := &Set{
		Seed: maphash.MakeSeed(), Hash: maphash.String, max: int64(o.Max), horizon: int64(o.Horizon / time.Microsecond),
		clock: o.Clock, Born: time.Now(), maintain: o.Maintain,
	}
	t.shortestHorizon = t.horizon
	t.most = 3*o.Max + 1000 // all leases may end at once, each with two charges
	t.dueAt = math.MaxInt64
	for i := 0; i < ShardCount; i++ {
		t.Shards = append(t.Shards, &Shard{Rows: map[RowID]*Lease{}, demands: make([]demandCount, shardDemands)})
	}
	return t
}

// Now is the lease clock in microseconds.
func Now(t *Set) int64 {
	if t.clock != nil {
		return t.clock()
	}
	return int64(time.Since(t.Born) / time.Microsecond)
}

// Horizon is how far ahead a limit's leases are sized, in microseconds: that of the set, or a twentieth of the
// window. 0 is for a limit without leases: a bucket that is refilled evenly gains no tokens while it is full, so an
// early charge would let it gain more.
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

// MostLife is the longest that units may be used after their charge, in microseconds.
func MostLife(t *Set, l *ratelimit.Limit) int64 { return Horizon(t, l) * 3 / 2 }

// shardOf returns the shard of a key.
func shardOf(t *Set, key string) *Shard {
	return t.Shards[t.Hash(t.Seed, key)%ShardCount]
}

// Count is how many leases there are, those included that hold nothing now.
func Count(t *Set) int64 { return atomic.LoadInt64(&t.count) }

// Any reports whether there are leases, or units that wait to be given back.
func Any(t *Set) bool {
	if Count(t) > 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.wants) > 0 || len(t.returns) > 0
}

// HeldSince is how many of the held units of a row the lease had at a time of the lease clock. A
// statement that was sent at that time does not count these units as left. It may count units that
// came later.
func HeldSince(t *Set, row RowID, since int64) int64 {
	now := Now(t)
	s := shardOf(t, row.Key)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	l := s.Rows[row]
	if l == nil {
		return 0
	}
	settle(t, s, l, now)
	held := int64(0)
	if l.First.Since <= since {
		held = l.First.N
	}
	if l.Then.Since <= since {
		held += l.Then.N
	}
	spare(l, now)
	return held
}

// Taken is how many requests were decided, by the plugin in units.
func Taken(t *Set) int64 {
	taken := int64(0)
	for _, s := range t.Shards {
		s.Mu.Lock()
		taken += s.Taken
		s.Mu.Unlock()
	}
	return taken
}

// Total is how many units of all rows are held.
func Total(t *Set) int64 {
	total := int64(0)
	for _, s := range t.Shards {
		s.Mu.Lock()
		for _, l := range s.Rows {
			total += l.Spare - l.spared + l.First.N + l.Then.N
		}
		s.Mu.Unlock()
	}
	return total
}
