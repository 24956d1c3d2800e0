// Package algorithm defines how each algorithm counts: its step in Go and the same step
// in SQL, one file for each algorithm. The Go step is the definition; tests of package
// postgres hold the SQL equal to it.
//
// All functions are pure: they change the Row that they are given and nothing else. Times
// are microseconds since the Unix epoch. If a clock was set back, now may lie before the times
// in the row. The time in the row then counts, unless it lies further ahead than a window, or a full
// burst takes to come back: then the row counts as new, see ahead.
package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Definition is one way to count.
type Definition struct {
	// Name names the definition in tests and in errors.
	Name string

	// Take charges as many of n hits of the given cost (1 ≤ cost ≤ Capacity) as fit,
	// and returns how many. If none fits the row stays as it was.
	Take func(l *ratelimit.Limit, r *Row, now, n, cost int64) int64

	// Adjust gives cost back, never beyond the full quota. With a cost below 0 it charges -cost,
	// whether or not it fits: until twice the quota is used at most. at is when the cost was charged,
	// or any time in the same window. Adjust has no effect on a row in which that charge does not
	// count any more, and gives back no more than what still counts. With an at of 0 the last charges
	// are meant. At the same now it undoes a Take: the row then decides as it did before.
	Adjust func(l *ratelimit.Limit, r *Row, now, cost, at int64)

	// Look returns what is left of the quota at now, negative if the quota is
	// overdrawn, and ratelimit.Decision.Reset of a hit that is not refused.
	Look func(l *ratelimit.Limit, r *Row, now int64) (free, reset int64)

	// Passes returns the earliest time at which a cost (up to Capacity) would pass. It is
	// called only for a cost that does not pass at now.
	Passes func(l *ratelimit.Limit, r *Row, now, cost int64) int64

	// Lease returns for how many microseconds, at most most, units may be used that were charged
	// at now for later hits. In that time, the use of such a unit has the same effect as a
	// charge at the time of its use. r is the row after the charge. Lease also returns a claim,
	// a time in the window of the charge, with which Adjust gives the units back. Nil means that no
	// charge can be early.
	Lease func(l *ratelimit.Limit, r *Row, now, most int64) (life, claim int64)

	// SQL is the step as Postgres runs it.
	SQL *SQL

	// lookAll is Look for many rows; nil means to call Look for each.
	lookAll func(views []*View)
}

// definitions are the definitions by ratelimit.Algorithm, then that of calendarWindow. The init function in each
// algorithm's file sets one; they do not change after that.
var definitions [calendarWindow + 1]*Definition

// calendarWindow is the definition of a FixedWindow on the calendar, which has no ratelimit.Algorithm of its own.
const calendarWindow = ratelimit.InFlight + 1

// define sets the definition of an algorithm, or calendarWindow. The init functions run before
// any other code reads the table.
func define(a ratelimit.Algorithm, name string, d Definition) {
	d.Name = name
	d.SQL.Width = strings.Count(d.SQL.Columns, ",") + 1
	if d.SQL.ReadExpires {
		d.SQL.Width++
	}
	definitions[a] = &d
}

// Of returns the definition of how a limit counts.
func Of(l *ratelimit.Limit) *Definition {
	if l.Calendar != ratelimit.NoCalendar {
		return definitions[calendarWindow]
	}
	if l.Algorithm == ratelimit.TokenBucket && l.RefillsEvenly() {
		return definitions[ratelimit.GCRA]
	}
	return definitions[l.Algorithm]
}

// All returns all definitions.
func All() []*Definition { return append([]*Definition(nil), definitions[:]...) }

// LookAll looks at rows of limits that all have this definition. It is one loop over all rows,
// because a call costs an interpreter far more than a round of a loop.
func LookAll(views []*View) {
	if len(views) == 0 {
		return
	}
	d := Of(views[0].Limit)
	var l *ratelimit.Limit
	quota := int64(0)
	for _, v := range views {
		if v.Limit != l {
			l = v.Limit
			quota = l.Capacity()
		}
		v.Quota = quota
	}
	if d.lookAll != nil {
		d.lookAll(views)
		return
	}
	for _, v := range views {
		free, reset := d.Look(v.Limit, &v.Row, v.Now)
		v.Free = free
		v.Reset = reset
	}
}
