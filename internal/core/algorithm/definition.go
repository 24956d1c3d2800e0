// Package algorithm implements the algorithms of a Limit, in Go and in SQL, so that a decision in memory
// equals the decision of the database.
//
// A Definition holds both implementations of one algorithm: the steps in Go and the step in SQL. Each
// algorithm has its own file. The steps in Go are the reference, and tests of the store compare the SQL with
// them. A Row is the state of one key. A View is a row at a time, under a limit. SQL holds the parts from
// which the store builds its statements.
//
// All functions are deterministic and change nothing but the given Row. Times are microseconds since the Unix
// epoch. After a clock was set back, now may be earlier than the times in a row, and the row's time is used
// instead of now, unless the row's time is ahead of now by more than clockSlack plus the length of a window
// (for a bucket, the time to fill it). Such a row counts as new, see countsAsNew.
package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Definition describes one algorithm to the stores. Its functions require a valid limit.
type Definition struct {
	// Name identifies the algorithm in tests and errors.
	Name string

	// Charge charges as many of n hits of the given cost (1 ≤ cost ≤ Capacity) as fit, and returns their
	// number. If none fits, no count changes.
	Charge func(l *ratelimit.Limit, r *Row, now, n, cost int64) int64

	// Adjust refunds cost, never beyond the full quota. A negative cost is charged even if it does not fit:
	// in full by windows, and by buckets until twice the quota is used. at is the time of the original
	// charge, or any time in the same window; 0 means the last charges. Adjust has no effect if the charge
	// no longer counts in the row, and refunds at most the part that still counts. Immediately after a Charge
	// with the same now, Adjust undoes the Charge: the row then decides as before.
	Adjust func(l *ratelimit.Limit, r *Row, now, cost, at int64)

	// Peek returns the remaining quota at now, which is negative if the quota is overdrawn. reset is the
	// Decision.Reset of an allowed hit.
	Peek func(l *ratelimit.Limit, r *Row, now int64) (free, reset int64)

	// Passes returns the earliest time at which a hit of the given cost (at most Capacity) would pass. The
	// hit must not pass at now.
	Passes func(l *ratelimit.Limit, r *Row, now, cost int64) int64

	// Lease returns the life of units that are charged in advance at now, in microseconds and at most
	// maxLife. During its life, using a unit has the same effect as charging it at the time of use. r is the
	// row after the charge. claim is a time in the window of the charge, to pass as at to Adjust for a refund
	// of unused units. A nil Lease means that no unit may be charged in advance.
	Lease func(l *ratelimit.Limit, r *Row, now, maxLife int64) (life, claim int64)

	// SQL has the parts of statements in SQL.
	SQL *SQL

	// PeekAll sets Free and Reset of views, as Peek returns them. An algorithm can define it with one
	// loop for all rows, because in Yaegi a call takes much longer than an iteration.
	PeekAll func(views []*View)

	// Reserves is set in a definition of limits that reserve. reserving is the definition of the limits of
	// the same algorithm that reserve, or nil if none can.
	Reserves  bool
	reserving *Definition
}

// definitions holds the definitions by ratelimit.Algorithm, and the definition of calendar windows at
// calendarWindow. Only init functions change it.
var definitions [calendarWindow + 1]*Definition

// calendarWindow is the index of the definition of a FixedWindow with a Calendar.
const calendarWindow = ratelimit.InFlight + 1

// define registers the definition of an algorithm, or of calendarWindow. Only init functions call it.
func define(a ratelimit.Algorithm, d Definition) {
	if d.Name == "" {
		d.Name = a.String()
	}
	complete(&d)
	definitions[a] = &d
}

// complete sets the fields of a definition that follow from others.
func complete(d *Definition) {
	if d.PeekAll == nil {
		d.PeekAll = func(views []*View) {
			for _, v := range views {
				free, reset := d.Peek(v.Limit, &v.Row, v.Now)
				v.Free = free
				v.Reset = reset
			}
		}
	}
	if d.SQL.Returned == "" {
		d.SQL.Returned = d.SQL.Columns
	}
	if d.SQL.PeekReturned == "" {
		d.SQL.PeekReturned = d.SQL.Returned
	}
	d.SQL.Width = strings.Count(d.SQL.Columns, ",") + 1
	if d.SQL.ReadExpires {
		d.SQL.Width++
	}
}

// Of returns the definition for a limit.
func Of(l *ratelimit.Limit) *Definition {
	if l.Reserves {
		return CountingOf(l).reserving
	}
	return CountingOf(l)
}

// CountingOf returns the definition of a limit that does not reserve, and counts as l does.
func CountingOf(l *ratelimit.Limit) *Definition {
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		return definitions[calendarWindow]
	case l.Algorithm == ratelimit.TokenBucket && l.RefillsEvenly():
		return definitions[ratelimit.GCRA]
	}
	return definitions[l.Algorithm]
}

// All returns the definitions of limits that do not reserve.
func All() []*Definition { return append([]*Definition(nil), definitions[:]...) }
