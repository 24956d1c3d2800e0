package engine

import (
	"errors"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Stats holds the figures of an engine, indexed by the constants below.
type Stats []int64

// The figures. The first two describe the current state. The others are counts since the engine was made.
const (
	RememberedRefusals = iota // refusals that are remembered now
	LeasedUnits               // the unused units of leases
	Requests                  // calls that were sent to the database
	Batches                   // batches that were sent to the database
	Statements                // statements, retries included
	RolledBack                // transactions rolled back because a request of several limits did not fit
	RefusedFromMemory         // requests refused from memory
	Leased                    // requests admitted from memory, see Limit.Lease
	Failures                  // batches that got no decision
	Settled                   // settlements that took effect
	Unsettled                 // settlements that may have had no effect
	LostUnits                 // units that killed processes held, see package store

	// Errors begins the counts of errors by class, in the order of pg.Classes.
	Errors

	// Sizes begins a histogram of HistogramSize elements, as do Waits and Times. Element i counts the values
	// above 1<<(i-1) and up to 1<<i, and element 0 the values up to 1. The last element but one also counts
	// all larger values. The last element is the sum of all values.
	Sizes   = Errors + pg.ClassCount // requests in a batch
	Waits   = Sizes + HistogramSize  // microseconds from the arrival of a batch's first request to its start
	Times   = Waits + HistogramSize  // microseconds from a batch's start to its end
	figures = Times + HistogramSize
)

// HistogramSize is the number of elements of a histogram. 1<<24 microseconds are 17 seconds.
const HistogramSize = 26

// NewStats returns Stats of zeros.
func NewStats() Stats { return make(Stats, figures) }

// Add adds the figures of another engine.
func (s Stats) Add(other Stats) {
	for i, n := range other {
		s[i] += n
	}
}

// Subtract subtracts earlier counts.
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

// settled counts n settlements. A charge of units that were admitted without the database counts as a
// settlement, too.
func (e *Engine) settled(n int64, err error) {
	if err == nil {
		atomic.AddInt64(&e.stats[Settled], n)
		return
	}
	atomic.AddInt64(&e.stats[Unsettled], n)
	for ; n > 0 && e.lost != nil; n-- {
		e.lost()
	}
}

// Stats returns the current figures.
func (e *Engine) Stats() Stats {
	stats := NewStats()
	for i := range stats {
		stats[i] = atomic.LoadInt64(&e.stats[i])
	}
	rows := lease.Stats(e.rows)
	stats[RememberedRefusals] = rows.Refusals
	stats[LeasedUnits] = rows.Units
	stats[Leased] = rows.Decided
	return stats
}

// countErrors counts the errors of a call of DB.Run with these statements. failure is the error of Run. It
// counts once, however many statements have no result because of it. If a timeout ended Run after a statement
// had failed with a code, both errors count.
func countErrors(stats Stats, statements []*pgdb.Statement, failure error) {
	counted := false
	for _, s := range statements {
		// A transaction of several limits that do not fit fails on purpose.
		if s.Err != nil && !statement.IsOnPurpose(s) && !errors.Is(s.Err, pgdb.ErrRolledBack) &&
			(failure == nil || s.Code != "" && !counted) {
			counted = true
			atomic.AddInt64(&stats[Errors+pg.ClassOf(s.Code)], 1)
		}
	}
	switch {
	case failure == nil:
	case !errors.Is(failure, pgdb.ErrConnectionLost):
		atomic.AddInt64(&stats[Errors+pg.ClassOf(pg.TimeoutClass)], 1)
	case !counted:
		atomic.AddInt64(&stats[Errors+pg.ClassOf(pg.ConnectionClass)], 1)
	}
}
