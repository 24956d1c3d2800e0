package ratelimit

// fixedWindow admits Events in each window. A key's window starts with the
// first hit after the last one ended, so at now = start + Window the next is
// open. Up to 2·Events can pass in a short time around a window's end.
//
// State: count, window_start. expires_at is the window's end, exactly: the npm
// library pg-ratelimit reads it as such.
var fixedWindow = algorithm{takeFixed, refundFixed, lookFixed, nil, retryFixed, claimStart, &fixedWindowSQL}

func takeFixed(l *Limit, r *row, now, n, cost int64) int64 {
	fresh := r.start == 0 || now >= r.start+window(l)
	used := r.count
	if fresh {
		used = 0
	}
	granted := fit(l.Events-used, n, cost)
	if fresh {
		r.start = now
		r.prevCount = 0
	}
	r.count = used + granted*cost
	r.expires = r.start + window(l)
	return granted
}

func refundFixed(l *Limit, r *row, now, cost int64, c *claim) {
	if c != nil && c.at != r.start || now >= r.start+window(l) {
		return
	}
	r.count = larger(0, r.count-cost)
}

func lookFixed(l *Limit, r *row, now int64) (free, reset int64) {
	end := r.start + window(l)
	if r.start == 0 || r.count == 0 || now >= end {
		return l.Events, now
	}
	return l.Events - r.count, end
}

func retryFixed(l *Limit, r *row, now, cost int64) int64 { return r.start + window(l) }

// claimStart names the window.
func claimStart(l *Limit, r *row, now int64) claim { return claim{at: r.start} }

// scanCounts reads count, prev_count and window_start. A refund of the npm
// library can leave a count below 0; here that is 0, also in the statements.
func scanCounts(cells []cell, width int, rows []*row) {
	at := 0
	for _, r := range rows {
		r.count = cells[at].Value
		if r.count < 0 {
			r.count = 0
		}
		r.prevCount = cells[at+1].Value
		if r.prevCount < 0 {
			r.prevCount = 0
		}
		if cells[at+2].Length == 8 {
			r.start = cells[at+2].Value + postgresEpoch
		}
		at += width
	}
}

var fixedWindowSQL = stepSQL{
	columns:  "count, prev_count, window_start",
	returned: "count, coalesce(prev_count, 0), window_start",
	fresh:    "i.granted * i.cost, NULL, clock.now, clock.now + i.span * interval '1 microsecond'",
	step: `SELECT excluded.slot, granted,
		CASE WHEN fresh THEN granted * {cost} ELSE greatest(0, r.count) + granted * {cost} END,
		CASE WHEN NOT fresh THEN r.prev_count END,
		CASE WHEN fresh THEN excluded.window_start ELSE r.window_start END,
		CASE WHEN fresh THEN excluded.expires_at ELSE ends END
	FROM (SELECT *, CASE WHEN fresh THEN excluded.granted ELSE greatest(0, least(excluded.granted, ({quota} - greatest(0, r.count)) / {cost})) END AS granted
	FROM (SELECT ends, coalesce(excluded.window_start >= ends, true) AS fresh
	FROM (SELECT r.window_start + {span} * interval '1 microsecond' AS ends OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	refund: `count = greatest(0, r.count - i.cost)
	WHERE r.window_start = coalesce(i.claimed, r.window_start)
	AND clock.now < r.window_start + i.span * interval '1 microsecond'`,
	scan: scanCounts,
}
