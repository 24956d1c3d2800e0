package engine

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Stats holds the figures of a store, indexed by the constants below.
type Stats []int64

// The figures. The first two are of the current state, and the others count since the store was made.
const (
	BlockedKeys = iota // keys with a remembered refusal
	LeasedUnits        // the units of leases
	Requests           // calls of Take and Reset that went to the database
	Batches            // batches in which they went
	Statements         // statements, retries included
	RolledBack         // transactions that were rolled back because a request of several limits did not fit
	Blocked            // requests refused without asking the database
	Leased             // requests that passed without asking the database, see Limit.Lease
	Failures           // batches that got no decision
	Settled            // settlements that were made
	Unsettled          // settlements that may not have had their effect

	// Errors begins the counts of errors by class, in the order of pg.Classes.
	Errors

	// Sizes begins a histogram of HistogramSize elements, as do Waits and Times. Element i counts the values
	// that are above 1<<(i-1) and at most 1<<i. Element 0 counts those that are at most 1. The last but one
	// includes all that are larger, and the last is the sum of all values.
	Sizes   = Errors + pg.ClassCount // requests in a batch
	Waits   = Sizes + HistogramSize  // microseconds from the arrival of a batch's first request to its start
	Times   = Waits + HistogramSize  // microseconds from a batch's start to its end
	figures = Times + HistogramSize
)

// HistogramSize is the number of elements of a histogram. 1<<24 microseconds are 17 seconds.
const HistogramSize = 26

// NewStats returns Stats of zeros.
func NewStats() Stats { return make(Stats, figures) }

// Add adds the figures of another store.
func (s Stats) Add(other Stats) {
	for i, n := range other {
		s[i] += n
	}
}

// Subtract subtracts the counts of an earlier time.
func (s Stats) Subtract(before Stats) {
	for i := Requests; i < figures; i++ {
		s[i] -= before[i]
	}
}

// ErrorsByClass returns the counts of errors, with an element for each of pg.Classes.
func (s Stats) ErrorsByClass() map[string]int64 {
	counts := map[string]int64{}
	for i, class := range pg.Classes {
		counts[class] = s[Errors+i]
	}
	return counts
}

// count adds n to a figure. Callers of a store can read what was counted before they continued.
func count(s Stats, figure int, n int64) { atomic.AddInt64(&s[figure], n) }

// addValue adds a value to the histogram that begins at first.
func addValue(s Stats, first int, value int64) {
	bucket := 0
	if value > 1 {
		bucket = bits.Len64(uint64(value - 1))
	}
	if bucket > HistogramSize-2 {
		bucket = HistogramSize - 2
	}
	count(s, first+bucket, 1)
	count(s, first+HistogramSize-1, value)
}

// settled counts a settlement, or a charge after an outage. It implements batch.Call.End.
func (s *Store) settled(_ int64, err error) {
	if err == nil {
		count(s.stats, Settled, 1)
	} else {
		count(s.stats, Unsettled, 1)
	}
}

// Stats returns the figures as of now.
func (s *Store) Stats() Stats {
	stats := NewStats()
	for i := range stats {
		stats[i] = atomic.LoadInt64(&s.stats[i])
	}
	rows := lease.Stats(s.rows)
	stats[BlockedKeys] = rows.Refusing
	stats[LeasedUnits] = rows.Units
	stats[Leased] = rows.Decided
	return stats
}

// countErrors counts the errors of a call of DB.Run with these statements. failure is the error of Run: it
// counts as one error, however many statements it leaves without an answer.
func countErrors(stats Stats, statements []*pgdb.Statement, failure error) {
	counted := false
	for _, s := range statements {
		// A transaction of several limits that do not fit fails on purpose.
		if s.Err != nil && !isOnPurpose(s) && !errors.Is(s.Err, pgdb.ErrRolledBack) &&
			(failure == nil || s.Code != "" && !counted) {
			counted = true
			count(stats, Errors+pg.ClassOf(s.Code), 1)
		}
	}
	switch {
	case errors.Is(failure, context.DeadlineExceeded):
		count(stats, Errors+pg.ClassOf(pg.TimeoutClass), 1)
	case failure != nil && !counted:
		count(stats, Errors+pg.ClassOf(pg.ConnectionClass), 1)
	}
}
