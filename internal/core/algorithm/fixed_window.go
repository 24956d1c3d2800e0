package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// A fixed window admits a hit while
//
//	count + cost ≤ Events
//
// A key's window starts with the first hit after the end of the previous window. At now = window_start +
// Window, the window has ended. Up to 2·Events can pass in a short time around the end of a window.
//
// State: count, window_start. expires_at is exactly the end of the window, because the npm library
// pg-ratelimit reads it as the end.

func init() {
	define(ratelimit.FixedWindow, Definition{
		Charge: chargeFixed, Adjust: adjustFixed, Peek: peekFixed, Passes: passesFixed, Lease: leaseInWindow,
		SQL: &fixedWindowSQL,
	})
	defineReserving(ratelimit.FixedWindow)
}

// windowEnd returns the end of a row's window. The end of a calendar window is expires_at, which the server
// wrote, so the result does not depend on the time-zone data of this process.
func windowEnd(l *ratelimit.Limit, r *Row) int64 {
	if l.Calendar != ratelimit.NoCalendar {
		return r.Expires
	}
	return r.Start + window(l)
}

func chargeFixed(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	if countsAsNew(l, r, now) {
		r.Start = 0
	}
	start, end := r.Start, r.Start+window(l)
	if l.Calendar != ratelimit.NoCalendar {
		if start, end = Period(l, now); r.Start >= end { // the clock was set back
			start, end = r.Start, r.Expires
		}
	} else if r.Start == 0 || now >= end {
		start, end = now, now+window(l)
	}
	if r.Start < start {
		r.Start, r.Count, r.PrevCount = start, 0, 0
	}
	granted := fit(l.Events-r.Count, n, cost)
	r.Count += granted * cost
	r.Expires = end
	return granted
}

func adjustFixed(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	if r.Start != 0 && now < windowEnd(l, r) && !countsAsNew(l, r, now) && (at == 0 || at >= r.Start) {
		r.Count = adjustedCount(r.Count, cost)
	}
}

func peekFixed(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	end := windowEnd(l, r)
	if r.Start == 0 || r.Count == 0 || now >= end || r.Start > now+clockSlack && countsAsNew(l, r, now) {
		return l.Events, now
	}
	return l.Events - r.Count, end
}

// leaseInWindow implements Definition.Lease for fixed_window and sliding_window. Within one window the time
// of a charge makes no difference. In a sliding window, a unit that fits now fits until the end of the
// window, because the weight of the previous window only decreases. The claim is window_start. After the end
// of the charge's window, an adjustment has no effect in a fixed window. In a sliding window, it changes
// prev_count while the charge's window is the previous one.
func leaseInWindow(l *ratelimit.Limit, r *Row, now, maxLife int64) (life, claim int64) {
	return smaller(maxLife, r.Start+window(l)-now), r.Start
}

func passesFixed(l *ratelimit.Limit, r *Row, now, cost int64) int64 { return windowEnd(l, r) }

// windowNotAheadSQL is the negation of countsAsNew for an adjustment.
const windowNotAheadSQL = "r.window_start <= {now} + ({span} + 10000000) * interval '1 microsecond'"

// windowStepSQL returns SQL.Step for windows with a fixed end. ends is the end of the row's window. fresh is
// the condition for the start of a new window, which is NULL for a row without a window.
func windowStepSQL(ends, fresh string) string {
	return `SELECT excluded.ord, granted,
		CASE WHEN fresh THEN granted * {cost} ELSE greatest(0, r.count) + granted * {cost} END,
		CASE WHEN NOT fresh THEN r.prev_count END,
		CASE WHEN fresh THEN excluded.window_start ELSE r.window_start END,
		CASE WHEN fresh THEN excluded.expires_at ELSE ends END
	FROM (SELECT *, CASE WHEN fresh THEN {most}
		ELSE greatest(0, least({most}, ({quota} - greatest(0, r.count)) / {cost})) END AS granted
	FROM (SELECT ends, coalesce(` + fresh + `, true) AS fresh
	FROM (SELECT ` + ends + ` AS ends OFFSET 0) a OFFSET 0) b OFFSET 0) c`
}

const (
	windowColumns  = "count, prev_count, window_start"
	windowReturned = "count, coalesce(prev_count, 0), window_start"
)

var fixedWindowSQL = SQL{
	Columns:  windowColumns,
	Returned: windowReturned,
	Fresh:    "i.granted * {cost}, NULL, i.now, i.now + {span} * interval '1 microsecond'",
	Step: windowStepSQL("r.window_start + {span} * interval '1 microsecond'", `excluded.window_start >= ends
		OR r.window_start > excluded.expires_at AND r.window_start > excluded.expires_at + interval '10 s'`),
	Adjust: "count = " + adjustedCountSQL("greatest(0, r.count)"),
	AdjustWhere: "{now} < r.window_start + {span} * interval '1 microsecond' AND " + windowNotAheadSQL +
		" AND coalesce(r.window_start <= {claimed}, true)",
	Read: readCounts,
}
