package engine

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// tally is what batches add to the counts.
type tally struct {
	Requests, Batches, Statements, RolledBack, Blocked, Failures int64 // as in Stats
}

// histogramSize is the length of Histogram.Counts. 1<<24 microseconds are 17 seconds.
const histogramSize = 25

// counts adds up Stats.
type counts struct {
	mu    sync.Mutex // guards stats
	stats Stats
}

func newCounts() *counts {
	c := &counts{stats: Stats{
		Sizes:  Histogram{Counts: make([]int64, histogramSize)},
		Waits:  Histogram{Counts: make([]int64, histogramSize)},
		Times:  Histogram{Counts: make([]int64, histogramSize)},
		Errors: make(map[string]int64, len(pg.Classes)),
	}}
	for _, class := range pg.Classes {
		c.stats.Errors[class] = 0
	}
	return c
}

// add adds what a batch has done, and empties the tally.
func (c *counts) add(s *tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Requests += s.Requests
	c.stats.Batches += s.Batches
	c.stats.Statements += s.Statements
	c.stats.RolledBack += s.RolledBack
	c.stats.Blocked += s.Blocked
	c.stats.Failures += s.Failures
	*s = tally{}
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
	c.stats.Sizes.Counts[bySize]++
	c.stats.Sizes.Sum += int64(size)
	c.stats.Waits.Counts[byWait]++
	c.stats.Waits.Sum += waited
	c.stats.Times.Counts[byTime]++
	c.stats.Times.Sum += lasted
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
	c.stats.Errors[class]++
}

// settled counts a settlement, or a charge after an outage. It is batch.Call.End.
func (s *Store) settled(_ int64, err error) {
	c := s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.stats.Settled++
	} else {
		c.stats.Unsettled++
	}
}

// Stats returns the counts as of now.
func (s *Store) Stats() Stats {
	stats := Stats{InFlight: s.slots.Count()}
	stats.Waiting, _ = s.load()
	rows := lease.Look(s.rows)
	stats.BlockedKeys = rows.Refusing
	stats.Leased = rows.Taken
	stats.Leases = rows.Leases
	stats.LeasedUnits = rows.Units
	c := s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	stats.Add(&c.stats)
	return stats
}

// classOf is the class of an SQLSTATE.
func classOf(code string) string {
	if len(code) >= 2 {
		for _, class := range pg.Classes {
			if class == code[:2] {
				return class
			}
		}
	}
	return pg.OtherClass
}

// countErrors counts the errors of a call of DB.Run with these statements. failure is what Run
// returned: it counts as one error, however many statements it leaves without an answer.
func (c *counts) countErrors(statements []*pgdb.Statement, failure error) {
	if failure != nil {
		c.addError(classOfFailure(statements, failure))
		return
	}
	for _, s := range statements {
		// A transaction of several limits that do not fit fails on purpose.
		if s.Err != nil && !isOnPurpose(s) && !errors.Is(s.Err, pgdb.ErrRolledBack) {
			c.addError(classOf(s.Code))
		}
	}
}

// classOfFailure is the class of an error of DB.Run.
func classOfFailure(statements []*pgdb.Statement, failure error) string {
	if errors.Is(failure, context.DeadlineExceeded) {
		return pg.TimeoutClass
	}
	for _, s := range statements {
		if s.Err != nil && s.Code != "" && !isOnPurpose(s) {
			return classOf(s.Code)
		}
	}
	return pg.ConnectionClass
}
