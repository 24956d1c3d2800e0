package engine

import (
	"math/bits"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
)

// tally is what batches add to the counts.
type tally struct {
	Requests, Batches, Statements, RolledBack, Blocked, Failures int64 // as in chain.Stats
}

// histogramSize is the length of chain.Histogram.Counts. 1<<24 microseconds are 17 seconds.
const histogramSize = 25

// counts adds up chain.Stats.
type counts struct {
	mu     sync.Mutex // guards all that follows
	tally  tally
	sizes  chain.Histogram
	waits  chain.Histogram
	times  chain.Histogram
	errors map[string]int64
}

func newCounts() *counts {
	return &counts{
		sizes: chain.Histogram{Counts: make([]int64, histogramSize)}, waits: chain.Histogram{Counts: make([]int64, histogramSize)},
		times: chain.Histogram{Counts: make([]int64, histogramSize)}, errors: map[string]int64{},
	}
}

// add adds what a batch has done.
func (c *counts) add(s tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.Requests += s.Requests
	c.tally.Batches += s.Batches
	c.tally.Statements += s.Statements
	c.tally.RolledBack += s.RolledBack
	c.tally.Blocked += s.Blocked
	c.tally.Failures += s.Failures
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

// bucketOf is the index of a value in chain.Histogram.Counts.
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

// Stats implements chain.Store.
func (s *Store) Stats() chain.Stats {
	c := s.engine.counts
	stats := chain.Stats{Overfull: int64(len(s.Overfull())), Waiting: s.waiting(), InFlight: s.engine.slots.Count(), Errors: make(map[string]int64, len(sqlstate.Classes))}
	stats.Settled, stats.Unsettled = s.engine.settlements.Counts()
	if s.engine.blocked != nil {
		stats.BlockedKeys = int64(s.engine.blocked.Size())
	}
	if s.engine.leases != nil {
		leases := s.engine.leases.Set
		stats.Leased = lease.Taken(leases)
		stats.Leases = lease.Count(leases)
		stats.LeasedUnits = lease.Total(leases)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tally
	stats.Requests, stats.Batches, stats.Statements = t.Requests, t.Batches, t.Statements
	stats.RolledBack, stats.Blocked, stats.Failures = t.RolledBack, t.Blocked, t.Failures
	stats.Sizes, stats.Waits, stats.Times = copyOf(c.sizes), copyOf(c.waits), copyOf(c.times)
	for _, class := range sqlstate.Classes {
		stats.Errors[class] = c.errors[class]
	}
	return stats
}

func copyOf(h chain.Histogram) chain.Histogram {
	return chain.Histogram{Counts: append([]int64(nil), h.Counts...), Sum: h.Sum}
}
