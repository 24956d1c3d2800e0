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

// Histogram counts values by size.
type Histogram struct {
	// Counts[i] counts the values that are above 1<<(i-1) and at most 1<<i. Counts[0] counts those that are
	// at most 1, and the last element includes all that are larger.
	Counts []int64 `json:"counts"`

	// Sum is the sum of the values.
	Sum int64 `json:"sum"`
}

// Stats counts the work of a store since it was made, and what is under way.
type Stats struct {
	Requests   int64 // calls of Take and Reset that went to the database
	Batches    int64 // batches in which they went
	Statements int64 // statements, retries included
	RolledBack int64 // transactions that were rolled back because a request of several limits did not fit
	Blocked    int64 // requests refused without asking the database
	Leased     int64 // requests that passed without asking the database, see Limit.Lease
	Failures   int64 // batches that got no decision
	Settled    int64 // settlements that were made
	Unsettled  int64 // settlements that may not have had their effect

	// Errors counts errors by class, see pg.Classes. It has an element for each class.
	Errors map[string]int64

	Sizes Histogram // requests in a batch
	Waits Histogram // microseconds from the arrival of a batch's first request to the batch's start
	Times Histogram // microseconds from a batch's start to its end

	// The current state.
	BlockedKeys int64 // keys with a remembered refusal
	Leases      int64 // keys with a lease
	LeasedUnits int64 // the units of leases
	Waiting     int64 // requests that wait for a decision of the database
	InFlight    int64 // slots that requests of this process hold
}

// totals returns the fields that count since the store was made.
func (s *Stats) totals() []*int64 {
	return []*int64{&s.Requests, &s.Batches, &s.Statements, &s.RolledBack, &s.Blocked, &s.Leased, &s.Failures,
		&s.Settled, &s.Unsettled, &s.Sizes.Sum, &s.Waits.Sum, &s.Times.Sum}
}

// gauges returns the fields of the current state.
func (s *Stats) gauges() []*int64 {
	return []*int64{&s.BlockedKeys, &s.Leases, &s.LeasedUnits, &s.Waiting, &s.InFlight}
}

// Add adds the stats of another store.
func (s *Stats) Add(other *Stats) {
	s.add(other, 1)
	to := s.gauges()
	for i, n := range other.gauges() {
		*to[i] += *n
	}
}

// Subtract subtracts the counts of an earlier time.
func (s *Stats) Subtract(before *Stats) { s.add(before, -1) }

// add adds the counts of another store, multiplied by times.
func (s *Stats) add(other *Stats, times int64) {
	to := s.totals()
	for i, n := range other.totals() {
		*to[i] += times * *n
	}
	if s.Errors == nil {
		s.Errors = map[string]int64{}
	}
	for class, n := range other.Errors {
		s.Errors[class] += times * n
	}
	addCounts(&s.Sizes, &other.Sizes, times)
	addCounts(&s.Waits, &other.Waits, times)
	addCounts(&s.Times, &other.Times, times)
}

func addCounts(sum, other *Histogram, times int64) {
	for len(sum.Counts) < len(other.Counts) {
		sum.Counts = append(sum.Counts, 0)
	}
	for i, n := range other.Counts {
		sum.Counts[i] += times * n
	}
}

// tally counts the work of a batch.
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

// add adds a tally, and empties it.
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

// bucketOf returns the index of a value in Histogram.Counts.
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

// settled counts a settlement, or a charge after an outage. It implements batch.Call.End.
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
	stats.Waiting, _ = s.pendingCalls()
	rows := lease.Stats(s.rows)
	stats.BlockedKeys = rows.Refusing
	stats.Leased = rows.Decided
	stats.Leases = rows.Leases
	stats.LeasedUnits = rows.Units
	c := s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	stats.Add(&c.stats)
	return stats
}

// classOf returns the class of an SQLSTATE.
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

// countErrors counts the errors of a call of DB.Run with these statements. failure is the error of Run: it
// counts as one error, however many statements it leaves without an answer.
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

// classOfFailure returns the class of an error of DB.Run.
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
