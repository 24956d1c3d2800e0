package engine

import (
	"math/bits"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
)

// Histogram counts values by size.
type Histogram struct {
	// Counts[i] counts the values that are above 1<<(i-1) and at most 1<<i. Counts[0] counts those
	// that are at most 1, and the last element also those that are larger.
	Counts []int64

	// Sum is the sum of the values.
	Sum int64
}

// Batches are the histograms of the batches of a store, and what is under way.
type Batches struct {
	Waiting  int64 // requests that wait for a decision of the database
	Leases   int64 // keys of which units are charged in advance
	InFlight int64 // slots that requests of this process hold

	Sizes Histogram // requests in a batch
	Waits Histogram // microseconds from the arrival of a batch's first request to the batch's start
	Times Histogram // microseconds from a batch's start to its end
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
	Overfull    int64 // prefixes with more rows than Limit.MaxKeys that cannot be deleted
	Failures    int64 // batches for which no decision came

	// Errors counts errors by class: the first two characters of an SQLSTATE, "timeout" for an
	// answer that did not come in time, "connection" for a connection that failed without an
	// SQLSTATE, and "other" for all other SQLSTATEs. It has an element for each class.
	Errors map[string]int64
}

// histogramSize is the length of Histogram.Counts. 1<<24 microseconds are 17 seconds.
const histogramSize = 25

// counts adds up Stats.
type counts struct {
	mu     sync.Mutex // guards all that follows
	stats  Stats      // without the errors
	sizes  Histogram
	waits  Histogram
	times  Histogram
	errors map[string]int64
}

func newCounts() *counts {
	return &counts{
		sizes: Histogram{Counts: make([]int64, histogramSize)}, waits: Histogram{Counts: make([]int64, histogramSize)},
		times: Histogram{Counts: make([]int64, histogramSize)}, errors: map[string]int64{},
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

// bucketOf is the index of a value in Histogram.Counts.
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

// Settled returns how many settlements the store has made since it was made itself, and of how many it is not known
// whether they had their effect.
func (s *Store) Settled() (settled, lost int64) {
	made, missing := int64(0), int64(0)
	for _, one := range allStores(s) {
		m, l := one.engine.settlements.Counts()
		made += m
		missing += l
	}
	return made, missing
}

// Batches returns what the store has counted since it was made.
func (s *Store) Batches() Batches {
	b := Batches{}
	for _, one := range allStores(s) {
		b.Waiting += one.waiting()
		b.InFlight += one.engine.slots.Count()
		if one.engine.leases != nil {
			b.Leases += lease.Count(one.engine.leases.Set)
		}
	}
	c := s.engine.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	b.Sizes, b.Waits, b.Times = copyOf(c.sizes), copyOf(c.waits), copyOf(c.times)
	return b
}

func copyOf(h Histogram) Histogram {
	return Histogram{Counts: append([]int64(nil), h.Counts...), Sum: h.Sum}
}
