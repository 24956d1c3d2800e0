package postgres

import (
	"math/bits"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func init() {
	hooks.BatchesOf = batchesOf
	hooks.SetApplied = setApplied
	hooks.SettledOf = settledOf
	hooks.SetLive = setLive
}

// Stats counts what a Store has done since it was made.
type Stats struct {
	Requests    int64 // calls of Take and Reset that went to the database
	Batches     int64 // batches in which they went
	Statements  int64 // statements, retries included
	RolledBack  int64 // transactions undone because a request of several limits did not fit
	Blocked     int64 // requests refused without asking the database
	BlockedKeys int64 // keys that are known to be used up now
	Leased      int64 // requests that passed without asking the database, see Limit.Lease
	LeasedUnits int64 // units that are charged in advance now
	Failures    int64 // batches for which no decision came

	// Errors counts errors by class: the first two characters of an SQLSTATE, "timeout" for an
	// answer that did not come in time, "connection" for a connection that failed without an
	// SQLSTATE, and "other" for all other SQLSTATEs. It has an element for each class.
	Errors map[string]int64
}

// histogramSize is the length of hooks.Histogram.Counts. 1<<24 microseconds are 17 seconds.
const histogramSize = 25

// counts adds up Stats.
type counts struct {
	mu     sync.Mutex // guards all that follows
	stats  Stats      // without the errors
	sizes  hooks.Histogram
	waits  hooks.Histogram
	times  hooks.Histogram
	errors map[string]int64

	settled, unsettled int64 // settlements that were made, and those that are lost
}

func newCounts() *counts {
	return &counts{
		sizes: hooks.Histogram{Counts: make([]int64, histogramSize)}, waits: hooks.Histogram{Counts: make([]int64, histogramSize)},
		times: hooks.Histogram{Counts: make([]int64, histogramSize)}, errors: map[string]int64{},
	}
}

// add adds some stats, except BlockedKeys, Leased, LeasedUnits and errors.
func (c *counts) add(s Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Requests += s.Requests
	c.stats.Batches += s.Batches
	c.stats.Statements += s.Statements
	c.stats.RolledBack += s.RolledBack
	c.stats.Blocked += s.Blocked
	c.stats.Failures += s.Failures
}

// addBatch adds a batch to the histograms. It is one function without loops, since the
// interpreted plugin calls it for each batch.
func addBatch(c *counts, size int, wait, took time.Duration) {
	waited := int64(wait / time.Microsecond)
	lasted := int64(took / time.Microsecond)
	bySize := bucketOf(int64(size))
	byWait := bucketOf(waited)
	byTime := bucketOf(lasted)
	c.mu.Lock()
	c.sizes.Counts[bySize]++
	c.sizes.Sum += int64(size)
	c.waits.Counts[byWait]++
	c.waits.Sum += waited
	c.times.Counts[byTime]++
	c.times.Sum += lasted
	c.mu.Unlock()
}

// bucketOf is the index of a value in hooks.Histogram.Counts.
func bucketOf(value int64) int {
	if value <= 1 {
		return 0
	}
	i := bits.Len64(uint64(value - 1))
	if i >= histogramSize {
		return histogramSize - 1
	}
	return i
}

// addError counts an error of a class.
func (c *counts) addError(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors[class]++
}

// get returns the counts, in memory of their own.
func (c *counts) get() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := c.stats
	stats.Errors = make(map[string]int64, len(sqlstate.Classes))
	for _, class := range sqlstate.Classes {
		stats.Errors[class] = c.errors[class]
	}
	return stats
}

// addSettled adds settlements that were made, and some that are lost.
func addSettled(c *counts, settled, lost int64) {
	c.mu.Lock()
	c.settled += settled
	c.unsettled += lost
	c.mu.Unlock()
}

// settledOf is hooks.SettledOf.
func settledOf(store ratelimit.Store) (int64, int64) {
	s, ok := store.(*Store)
	if !ok {
		return 0, 0
	}
	c := s.engine.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled, c.unsettled
}

// batchesOf is hooks.BatchesOf.
func batchesOf(store ratelimit.Store) hooks.Batches {
	s, ok := store.(*Store)
	if !ok {
		return hooks.Batches{}
	}
	b := hooks.Batches{}
	for _, one := range allStores(s) {
		b.Waiting += one.waiting()
		b.InFlight += one.engine.flight.count()
		if one.engine.leases != nil {
			b.Leases += lease.Count(one.engine.leases)
		}
	}
	c := s.engine.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	b.Sizes, b.Waits, b.Times = copyOf(c.sizes), copyOf(c.waits), copyOf(c.times)
	return b
}

// count is how many slots the requests of this store hold.
func (f *flight) count() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int64(0)
	for _, held := range f.rows {
		n += held
	}
	return n
}

func copyOf(h hooks.Histogram) hooks.Histogram {
	return hooks.Histogram{Counts: append([]int64(nil), h.Counts...), Sum: h.Sum}
}
