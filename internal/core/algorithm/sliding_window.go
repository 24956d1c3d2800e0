package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// A sliding window admits a hit while
//
//	prev_count·(1 − elapsed/Window) + count + cost ≤ Events
//
// where elapsed is the time since window_start. The weighted part estimates the hits of the previous window
// that lie within the last Window, as if the hits were evenly spread. In the next window, count becomes
// prev_count and window_start moves by one Window. Two or more windows later, both counts are 0 and a window
// starts at the hit.
//
// All counts are whole numbers, so the decision is exact although the weighted part is rounded up before the
// comparison.
//
// State: count, prev_count, window_start. expires_at is window_start + 2·Window.

func init() {
	define(ratelimit.SlidingWindow, Definition{
		Charge: chargeSliding, Adjust: adjustSliding, Peek: peekSliding, PeekAll: peekAllSliding,
		Passes: passesSliding, Lease: leaseInWindow, SQL: &slidingWindowSQL,
	})
	defineReserving(ratelimit.SlidingWindow)
}

// countsAt returns the counts of the current and the previous window, and the start of the current one.
func countsAt(l *ratelimit.Limit, r *Row, now int64) (count, prev, start int64) {
	if r.Start != 0 && now < r.Start+window(l) && !countsAsNew(l, r, now) {
		return r.Count, r.PrevCount, r.Start
	}
	return countsAfterWindow(l, r, now)
}

// countsAfterWindow implements countsAt for a row with an ended window, and for one that counts as new.
func countsAfterWindow(l *ratelimit.Limit, r *Row, now int64) (count, prev, start int64) {
	if r.Start != 0 && now >= r.Start+window(l) && now < r.Start+2*window(l) {
		return 0, r.Count, r.Start + window(l)
	}
	return 0, 0, now
}

// weighted returns the weighted count of the previous window at now, rounded up.
func weighted(l *ratelimit.Limit, prev, start, now int64) int64 {
	if prev == 0 {
		return 0
	}
	return mulDiv(prev, window(l)-larger(0, now-start), window(l), true)
}

func chargeSliding(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	count, prev, start := countsAt(l, r, now)
	granted := fit(l.Events-count-weighted(l, prev, start, now), n, cost)
	if granted > 0 {
		r.Count, r.PrevCount, r.Start = count+granted*cost, prev, start
	}
	r.Expires = r.Start + 2*window(l)
	return granted
}

// adjustSliding refunds from the current window first, then from the previous one, unless the charge was in
// the previous window. If the previous window has no count, the row was reset after the charge, and nothing
// is refunded.
func adjustSliding(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	switch {
	case r.Start == 0 || now >= r.Start+2*window(l) || countsAsNew(l, r, now):
	case at == 0 || at >= r.Start:
		r.PrevCount = larger(0, r.PrevCount-larger(0, cost-r.Count))
		r.Count = adjustedCount(r.Count, cost)
	case at >= r.Start-window(l) && r.PrevCount > 0:
		r.PrevCount = adjustedCount(r.PrevCount, cost)
	}
}

func peekSliding(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	v := View{Limit: l, Row: *r, Now: now}
	peekAllSliding([]*View{&v})
	return v.Free, v.Reset
}

// peekAllSliding implements Definition.PeekAll. In the usual case its loop makes no calls.
func peekAllSliding(views []*View) {
	for _, v := range views {
		r := &v.Row
		now := v.Now
		w := int64(v.Limit.Window) / 1000
		start := r.Start
		count := r.Count
		prev := r.PrevCount
		if start == 0 || now >= start+w || start > now+clockSlack+w {
			count, prev, start = countsAfterWindow(v.Limit, r, now)
		}
		v.Free = v.Limit.Events - count
		v.Reset = start
		if prev > 0 {
			v.Free -= weighted(v.Limit, prev, start, now)
		}
		if count > 0 || prev > 0 {
			v.Reset = start + w
		} else if now > start {
			v.Reset = now
		}
	}
}

func passesSliding(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
	w := window(l)
	count, prev, start := countsAt(l, r, now)
	if room := l.Events - count - cost; room >= 0 {
		// The cost passes in this window, once prev·(w − elapsed) ≤ room·w.
		return start + w - mulDiv(room, w, prev, false)
	}
	// The cost passes in the next window, in which count is the previous count.
	if room := l.Events - cost; room < count {
		return start + 2*w - mulDiv(room, w, count, false)
	}
	return start + w
}

// readCounts implements SQL.Read for count, prev_count and window_start. A refund by the npm library can
// leave a count below 0. Here and in the statements, such a count is read as 0.
func readCounts(cells []Cell, width int, rows []*Row) {
	at := 0
	for _, r := range rows {
		r.Count = cells[at].Value
		if r.Count < 0 {
			r.Count = 0
		}
		r.PrevCount = cells[at+1].Value
		if r.PrevCount < 0 {
			r.PrevCount = 0
		}
		if cells[at+2].Length == 8 {
			r.Start = cells[at+2].Value + PostgresEpoch
		}
		at += width
	}
}

var slidingWindowSQL = SQL{
	Columns: windowColumns,
	Fresh:   "i.granted * {cost}, 0, i.now, i.now + 2 * {span} * interval '1 microsecond'",
	// As in countsAt, count, prev and start are as of now. passed is the elapsed time of the window. The
	// weight of prev is the remaining part of the window. The weighted count, rounded up, is prev −
	// prev·passed/span with the quotient rounded down. The product is exact, because it is numeric where
	// bigint is too small. elapsed is NULL for a row of another algorithm and for a row too far ahead. No
	// comparison with NULL is true, so the last case applies.
	Step: `SELECT excluded.ord, granted,
		CASE WHEN granted = 0 THEN r.count ELSE count + granted * {cost} END,
		CASE WHEN granted = 0 OR elapsed < span THEN r.prev_count ELSE prev END,
		CASE WHEN granted = 0 THEN r.window_start ELSE start END,
		CASE WHEN granted = 0 THEN r.window_start ELSE start END + 2 * span * interval '1 microsecond'
	FROM (SELECT *, greatest(0, least({most}, ({quota} - count - (prev - CASE
			WHEN prev < 9223372036854775807 / span THEN prev * passed / span
			ELSE div(prev::numeric * passed, span)::bigint END)) / {cost})) AS granted
	FROM (SELECT *, coalesce(elapsed % span, 0) AS passed,
		CASE WHEN elapsed < span THEN greatest(0, r.count) ELSE 0 END AS count,
		CASE WHEN elapsed < span THEN greatest(0, r.prev_count) WHEN elapsed < 2 * span
			THEN greatest(0, r.count) ELSE 0 END AS prev,
		CASE WHEN elapsed < span THEN r.window_start
			WHEN elapsed < 2 * span THEN r.window_start + span * interval '1 microsecond'
				ELSE excluded.window_start END AS start
	FROM (SELECT {span} AS span, CASE WHEN excluded.window_start >= r.window_start
		THEN (date_part('epoch', excluded.window_start - r.window_start) * 1000000)::bigint
		WHEN r.window_start <= excluded.window_start + ({span} + 10000000) * interval '1 microsecond'
			THEN 0 END AS elapsed
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	// An adjustment of a charge in the previous window does not change count.
	Adjust: `count = CASE WHEN r.window_start > {claimed} THEN r.count
		ELSE ` + adjustedCountSQL("greatest(0, r.count)") + ` END,
	prev_count = CASE WHEN r.window_start > {claimed} THEN ` + adjustedCountSQL("r.prev_count") + `
		ELSE greatest(0, r.prev_count - greatest(0, {cost} - greatest(0, r.count))) END`,
	AdjustWhere: `{now} < r.window_start + 2 * {span} * interval '1 microsecond' AND ` + windowNotAheadSQL + `
	AND ({claimed} IS NULL OR r.window_start <= {claimed}
		OR r.window_start - {span} * interval '1 microsecond' <= {claimed}
		AND coalesce(r.prev_count, 0) > 0)`,
	Read: readCounts,
}
