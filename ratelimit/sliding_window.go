package ratelimit

// slidingWindow admits a hit while
//
//	prev_count·(1 − elapsed/Window) + count + cost ≤ Events
//
// where elapsed is the time since window_start: an estimate of the hits in the
// last Window that takes the previous window's hits as evenly spread. One window
// on, count becomes prev_count and window_start moves by one Window; two or more
// on, the row is as new and the window starts at the hit.
//
// All counts are whole, so the weighted part is rounded up and the sum compared
// in whole numbers: the same decision, without a rounding error.
//
// State: count, prev_count, window_start; expires_at is window_start + 2·Window.
var slidingWindow = algorithm{takeSliding, refundSliding, lookSliding, lookAllSliding, retrySliding, claimStart, &slidingWindowSQL}

// slide returns the row's counters as of now.
func slide(l *Limit, r *row, now int64) (count, prev, start int64) {
	if r.start != 0 && now < r.start+window(l) {
		return r.count, r.prevCount, r.start
	}
	return slideOn(l, r, now)
}

// slideOn is slide once the row's window has passed.
func slideOn(l *Limit, r *row, now int64) (count, prev, start int64) {
	if r.start != 0 && now < r.start+2*window(l) {
		return 0, r.count, r.start + window(l)
	}
	return 0, 0, now
}

// weighted is what prev still counts at now, rounded up.
func weighted(l *Limit, prev, start, now int64) int64 {
	if prev == 0 {
		return 0
	}
	return mulDiv(prev, window(l)-larger(0, now-start), window(l), true)
}

func takeSliding(l *Limit, r *row, now, n, cost int64) int64 {
	count, prev, start := slide(l, r, now)
	granted := fit(l.Events-count-weighted(l, prev, start, now), n, cost)
	if granted > 0 {
		r.count, r.prevCount, r.start = count+granted*cost, prev, start
	}
	r.expires = r.start + 2*window(l)
	return granted
}

// refund takes from the current window first: what was given lately is given
// back. A claim is given back to the window that it was taken in.
func refundSliding(l *Limit, r *row, now, cost int64, c *claim) {
	if r.start == 0 || now >= r.start+2*window(l) {
		return
	}
	if c != nil && c.at != r.start {
		if c.at == r.start-window(l) {
			r.prevCount = larger(0, r.prevCount-cost)
		}
		return
	}
	fromCount := smaller(cost, r.count)
	r.count -= fromCount
	if c == nil {
		r.prevCount = larger(0, r.prevCount-(cost-fromCount))
	}
}

func lookSliding(l *Limit, r *row, now int64) (free, reset int64) {
	it := item{limit: l, row: *r, now: now}
	lookAllSliding([]*item{&it})
	return it.free, it.reset
}

func lookAllSliding(items []*item) {
	for _, it := range items {
		r := &it.row
		now := it.now
		w := int64(it.limit.Window) / 1000
		start := r.start
		count := r.count
		prev := r.prevCount
		if start == 0 || now >= start+w { // else as slide, in plain sight
			count, prev, start = slideOn(it.limit, r, now)
		}
		it.free = it.limit.Events - count
		it.reset = start
		if prev > 0 {
			it.free -= weighted(it.limit, prev, start, now)
			it.reset = start + w
		}
		if count > 0 {
			it.reset = start + 2*w
		} else if prev == 0 && now > start {
			it.reset = now
		}
	}
}

func retrySliding(l *Limit, r *row, now, cost int64) int64 {
	w := window(l)
	count, prev, start := slide(l, r, now)
	if room := l.Events - count - cost; room >= 0 {
		// It passes in this window, once prev·(w − elapsed) ≤ room·w.
		return start + w - mulDiv(room, w, prev, false)
	}
	// It passes in the next window, in which count is the previous one.
	if room := l.Events - cost; room < count {
		return start + 2*w - mulDiv(room, w, count, false)
	}
	return start + w
}

var slidingWindowSQL = stepSQL{
	columns: "count, prev_count, window_start",
	fresh:   "i.granted * i.cost, 0, clock.now, clock.now + 2 * i.span * interval '1 microsecond'",
	// As in slide, count, prev and start are as of now, and passed is how much of
	// that window has: prev still counts for what is left, rounded up, which is
	// prev − prev·passed/span rounded down. The product is exact: bigint where it
	// fits, else numeric. elapsed is NULL for a row of another algorithm; no
	// comparison with it is true, so the last case stands for it.
	step: `SELECT excluded.slot, granted,
		CASE WHEN granted = 0 THEN r.count ELSE count + granted * {cost} END,
		CASE WHEN granted = 0 OR elapsed < span THEN r.prev_count ELSE prev END,
		CASE WHEN granted = 0 THEN r.window_start ELSE start END,
		CASE WHEN granted = 0 THEN r.window_start ELSE start END + 2 * span * interval '1 microsecond'
	FROM (SELECT *, greatest(0, least(excluded.granted, ({quota} - count - (prev - CASE
			WHEN prev < 9223372036854775807 / span THEN prev * passed / span
			ELSE div(prev::numeric * passed, span)::bigint END)) / {cost})) AS granted
	FROM (SELECT *, coalesce(elapsed % span, 0) AS passed,
		CASE WHEN elapsed < span THEN greatest(0, r.count) ELSE 0 END AS count,
		CASE WHEN elapsed < span THEN greatest(0, r.prev_count) WHEN elapsed < 2 * span THEN greatest(0, r.count) ELSE 0 END AS prev,
		CASE WHEN elapsed < span THEN r.window_start
			WHEN elapsed < 2 * span THEN r.window_start + span * interval '1 microsecond' ELSE excluded.window_start END AS start
	FROM (SELECT {span} AS span, CASE WHEN excluded.window_start >= r.window_start THEN (date_part('epoch', excluded.window_start - r.window_start) * 1000000)::bigint
		WHEN r.window_start IS NOT NULL THEN 0 END AS elapsed
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	refund: `count = CASE WHEN i.claimed = r.window_start OR i.claimed IS NULL THEN greatest(0, r.count - i.cost) ELSE r.count END,
	prev_count = CASE WHEN i.claimed = r.window_start THEN r.prev_count
		WHEN i.claimed IS NULL THEN greatest(0, r.prev_count - (i.cost - least(i.cost, r.count)))
		ELSE greatest(0, r.prev_count - i.cost) END
	WHERE clock.now < r.window_start + 2 * i.span * interval '1 microsecond'
	AND coalesce(i.claimed IN (r.window_start, r.window_start - i.span * interval '1 microsecond'), true)`,
	scan: scanCounts,
}
