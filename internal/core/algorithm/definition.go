// Package algorithm defines how each algorithm of a Limit counts. A Definition holds an algorithm's
// step in Go and the same step in SQL, one file for each algorithm. The step in Go is the definition;
// tests of the store compare the SQL with it. A Row is the state of one key, a View that of a row as
// a limit sees it, and SQL the parts from which the store builds its statements.
//
// All functions are pure: they change the Row that they are given and nothing else. Times are
// microseconds since the Unix epoch. After a clock was set back, now may lie before the times in a
// row. The time in the row then counts, unless it lies further ahead than the length of a window, or
// the time in which a full burst comes back, and clockSlack. Such a row counts as new; see ahead.
package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Definition is one way to count.
type Definition struct {
	// Name is the name in tests and errors.
	Name string

	// Take charges as many of n hits of the given cost (1 ≤ cost ≤ Capacity) as fit, and returns their
	// number. If none fits, the row does not change.
	Take func(l *ratelimit.Limit, r *Row, now, n, cost int64) int64

	// Adjust refunds cost, never beyond the full quota. A negative cost is charged, whether or not it
	// fits, until twice the quota is used. at is the time of the original charge, or any time in the
	// same window; 0 means the last charges. Adjust has no effect if that charge no longer counts in
	// the row, and refunds no more than still counts. Right after a Take with the same now it undoes
	// the Take: the row then decides as before.
	Adjust func(l *ratelimit.Limit, r *Row, now, cost, at int64)

	// Look returns the remaining quota at now, negative if the quota is overdrawn, and the
	// Decision.Reset of a hit that is allowed.
	Look func(l *ratelimit.Limit, r *Row, now int64) (free, reset int64)

	// Passes returns the earliest time at which a cost (up to Capacity) would pass. The cost must not
	// pass at now.
	Passes func(l *ratelimit.Limit, r *Row, now, cost int64) int64

	// Lease returns the time in microseconds, at most most, during which hits may use units charged in
	// advance at now: using such a unit then has the same effect as charging it then. r is the row
	// after the charge. claim is a time in the window of the charge, which Adjust takes to release
	// units. A nil Lease means that no unit may be charged in advance.
	Lease func(l *ratelimit.Limit, r *Row, now, most int64) (life, claim int64)

	// SQL is the step in SQL.
	SQL *SQL

	// lookAll is Look for many rows. If it is nil, LookAll calls Look for each.
	lookAll func(views []*View)
}

// definitions holds the definitions by ratelimit.Algorithm, and that of calendarWindow. The init
// functions of the algorithms' files fill it. It does not change after that.
var definitions [calendarWindow + 1]*Definition

// calendarWindow is the index of the definition of a FixedWindow with a Calendar.
const calendarWindow = ratelimit.InFlight + 1

// define sets the definition of an algorithm, or of calendarWindow. Only init functions call it.
func define(a ratelimit.Algorithm, name string, d Definition) {
	d.Name = name
	d.SQL.Width = strings.Count(d.SQL.Columns, ",") + 1
	if d.SQL.ReadExpires {
		d.SQL.Width++
	}
	definitions[a] = &d
}

// Of returns the definition for a limit.
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

// LookAll sets Quota, Free and Reset of views, which must all have limits of one definition. It handles
// all rows in one loop, because Yaegi takes far longer for a call than for a round of a loop.
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
