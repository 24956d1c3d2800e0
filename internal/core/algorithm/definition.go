// Package algorithm implements the algorithms of a Limit, once in Go and once in SQL, so that a decision in
// memory equals the decision of the database.
//
// A Definition holds both steps of one algorithm; each algorithm has a file. The step in Go is the reference,
// and tests of the store compare the SQL with it. A Row is the state of one key. A View is a row at a time,
// under a limit. SQL holds the parts from which the store builds its statements.
//
// All functions are pure: they change the Row that they are given and nothing else. Times are microseconds
// since the Unix epoch. After a clock was set back, now may be earlier than the times in a row. The row's
// time then counts, with one exception: a row counts as new if its time is ahead of now by more than
// clockSlack and the length of a window (for a bucket, the time to fill it). See countsAsNew.
package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Definition describes one algorithm to the stores. Its functions require a valid limit.
type Definition struct {
	// Name identifies the algorithm in tests and errors.
	Name string

	// Take charges as many of n hits of the given cost (1 ≤ cost ≤ Capacity) as fit, and returns their
	// number. If none fits, the row does not change.
	Take func(l *ratelimit.Limit, r *Row, now, n, cost int64) int64

	// Adjust refunds cost, never beyond the full quota. A negative cost is charged, whether or not it fits,
	// until twice the quota is used. at is the time of the original charge, or any time in the same window; 0
	// means the last charges. Adjust has no effect if that charge no longer counts in the row, and refunds no
	// more than still counts. Right after a Take with the same now it undoes the Take: the row then decides
	// as before.
	Adjust func(l *ratelimit.Limit, r *Row, now, cost, at int64)

	// Look returns the remaining quota at now, negative if the quota is overdrawn, and the Decision.Reset of
	// a hit that is allowed.
	Peek func(l *ratelimit.Limit, r *Row, now int64) (free, reset int64)

	// Passes returns the earliest time at which a cost (up to Capacity) would pass. The cost must not pass at
	// now.
	Passes func(l *ratelimit.Limit, r *Row, now, cost int64) int64

	// Lease returns the life of units that are charged in advance at now: the time in microseconds, at most
	// most, during which using a unit has the same effect as charging it at the time of use. r is the row
	// after the charge. claim is a time in the window of the charge; Adjust takes it as at to refund unused
	// units. A nil Lease means that no unit may be charged in advance.
	Lease func(l *ratelimit.Limit, r *Row, now, most int64) (life, claim int64)

	// SQL holds the step in SQL.
	SQL *SQL

	// peekAll is Look for many rows. If it is nil, PeekAll calls Look for each.
	peekAll func(views []*View)
}

// definitions holds the definitions by ratelimit.Algorithm, and the one at calendarWindow. The init functions
// of the algorithms' files fill it; it does not change afterwards.
var definitions [calendarWindow + 1]*Definition

// calendarWindow is the index of the definition of a FixedWindow with a Calendar.
const calendarWindow = ratelimit.InFlight + 1

// define registers the definition of an algorithm, or of calendarWindow. Only init functions call it.
func define(a ratelimit.Algorithm, name string, d Definition) {
	d.Name = name
	d.SQL.Width = strings.Count(d.SQL.Columns, ",") + 1
	if d.SQL.ReadExpires {
		d.SQL.Width++
	}
	definitions[a] = &d
}

// Of returns the definition that counts a limit.
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

// PeekAll sets Quota, Free and Reset of views. The limits of all views must have the same definition. It
// handles all rows in one loop, because in Yaegi a call takes far longer than an iteration.
func PeekAll(views []*View) {
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
	if d.peekAll != nil {
		d.peekAll(views)
		return
	}
	for _, v := range views {
		free, reset := d.Peek(v.Limit, &v.Row, v.Now)
		v.Free = free
		v.Reset = reset
	}
}
