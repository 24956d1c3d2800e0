package ratelimit

import "math"

// noTokens is Postgres's NaN, which stands for NULL in what a statement returns.
const noTokens = 0x7FF8000000000000

// gcra is the generic cell rate algorithm (ITU-T I.371): Events are spread evenly
// over a Window, and up to Burst may pass at once. It keeps one time, the
// theoretical arrival time (TAT): when the backlog of what has passed will have
// drained, at Events a Window. A hit passes if with its cost the backlog is no
// more than Burst.
//
// The backlog is counted in units of which a hit is worth its cost times the
// Window in microseconds, and of which Events drain each microsecond: whole
// numbers, so nothing is rounded however fast the rate.
//
// State: last_refill is the TAT, in whole microseconds, and remainder the units
// that it lacks. expires_at lies at or after it, on a coarse grid.
var gcra = algorithm{takeGCRA, refundGCRA, lookGCRA, nil, retryGCRA, claimGCRA, &gcraSQL}

// maxSpan bounds Capacity·Window, and so every backlog.
const maxSpan = int64(1) << 62

// gcraTime returns the time that counts: now, or where the clock was set back so far
// that the backlog would exceed maxSpan, the time from which on it does not.
func gcraTime(l *Limit, r *row, now int64) int64 {
	if r.refill == 0 {
		return now
	}
	return larger(now, r.refill-smaller(maxSpan/l.Events, horizon))
}

// backlog is how many units have yet to drain at now. A row that TokenBucket
// wrote lacks tokens; they count as if they drained evenly since its refill.
func backlog(l *Limit, r *row, now int64) int64 {
	switch {
	case r.refill == 0:
		return 0
	case r.hasTokens:
		missing := capacity(l) - smaller(capacity(l), larger(0, int64(r.tokens)))
		return larger(0, missing*window(l)-smaller(larger(0, now-r.refill), maxSpan/l.Events)*l.Events)
	}
	return undrained(l, r.refill-now, smaller(r.remainder, l.Events-1))
}

// undrained is the backlog of a TAT that lies so many microseconds ahead.
func undrained(l *Limit, microseconds, remainder int64) int64 {
	if microseconds < 0 {
		return 0
	}
	return smaller(microseconds, maxSpan/l.Events)*l.Events + remainder
}

// storeBacklog writes a backlog into the row.
func storeBacklog(l *Limit, r *row, now, backlog int64) {
	r.refill = now + backlog/l.Events
	r.remainder = backlog % l.Events
	r.tokens, r.hasTokens = 0, false
}

func takeGCRA(l *Limit, r *row, now, n, cost int64) int64 {
	now = gcraTime(l, r, now)
	held := backlog(l, r, now)
	granted := fit(capacity(l)*window(l)-held, n, cost*window(l))
	if granted == 0 {
		return 0
	}
	storeBacklog(l, r, now, held+granted*cost*window(l))
	if r.expires <= r.refill {
		r.expires = r.refill + larger(bucketLinger, capacity(l)*window(l)/l.Events)
	}
	return granted
}

// refundGCRA gives of a claim no more than what of it has not drained yet.
func refundGCRA(l *Limit, r *row, now, cost int64, c *claim) {
	if r.refill == 0 || r.hasTokens {
		return
	}
	now = gcraTime(l, r, now)
	back := mulDiv(cost, window(l), 1, false)
	if c != nil {
		back = smaller(back, undrained(l, c.at-now, c.room))
	}
	storeBacklog(l, r, now, larger(0, backlog(l, r, now)-back))
}

func lookGCRA(l *Limit, r *row, now int64) (free, reset int64) {
	now = gcraTime(l, r, now)
	held := backlog(l, r, now)
	drained := now + mulDiv(held, 1, l.Events, true)
	room := capacity(l)*window(l) - held
	if room < 0 {
		return -1, drained
	}
	return room / window(l), drained
}

func retryGCRA(l *Limit, r *row, now, cost int64) int64 {
	now = gcraTime(l, r, now)
	excess := backlog(l, r, now) + cost*window(l) - capacity(l)*window(l)
	return now + mulDiv(excess, 1, l.Events, true)
}

// claimGCRA holds the TAT: what was taken has drained when it comes.
func claimGCRA(l *Limit, r *row, now int64) claim { return claim{at: r.refill, room: r.remainder} }

var gcraSQL = stepSQL{
	columns:  "tokens, last_refill, remainder",
	returned: "coalesce(tokens, 'NaN'), last_refill, remainder",
	needs:    []parameter{eventsParameter},
	fresh: `NULL, clock.now + i.granted * i.cost * i.span / i.events * interval '1 microsecond', i.granted * i.cost * i.span % i.events,
		clock.now + (i.granted * i.cost * i.span / i.events + greatest(60000000, i.quota * i.span / i.events)) * interval '1 microsecond'`,
	step: `SELECT excluded.slot, granted, CASE WHEN granted = 0 THEN r.tokens END,
		CASE WHEN granted > 0 THEN tat ELSE r.last_refill END,
		CASE WHEN granted > 0 THEN after % {events} ELSE r.remainder END,
		CASE WHEN granted = 0 OR r.expires_at > tat THEN r.expires_at ELSE tat + greatest(60000000, {quota} * {span} / {events}) * interval '1 microsecond' END
	FROM (SELECT *, now + after / {events} * interval '1 microsecond' AS tat
	FROM (SELECT *, backlog + granted * {cost} * {span} AS after
	FROM (SELECT *, greatest(0, least(excluded.granted, ({quota} * {span} - backlog) / ({cost} * {span}))) AS granted
	FROM (SELECT *, CASE WHEN r.last_refill IS NULL THEN 0
		WHEN r.tokens IS NOT NULL THEN greatest(0, ({quota} - least({quota}, greatest(0, trunc(r.tokens)::bigint))) * {span}
			- least(greatest(0, -ahead), 4611686018427387904 / events) * events)
		WHEN ahead >= 0 THEN least(ahead, 4611686018427387904 / events) * events + least(coalesce(r.remainder, 0), events - 1)
		ELSE 0 END AS backlog
	FROM (SELECT *, (date_part('epoch', r.last_refill - now) * 1000000)::bigint AS ahead
	FROM (SELECT {events} AS events, greatest(now, r.last_refill - least(4611686018427387904 / {events}, 3155760000000000) * interval '1 microsecond') AS now
	FROM clock OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d OFFSET 0) e OFFSET 0) f`,
	refund: `(last_refill, remainder) = (SELECT now + after / i.events * interval '1 microsecond', after % i.events
	FROM (SELECT now, greatest(0, CASE WHEN ahead >= 0 THEN least(ahead, 4611686018427387904 / i.events) * i.events + least(coalesce(r.remainder, 0), i.events - 1) ELSE 0 END
		- CASE WHEN i.claimed IS NULL THEN least(i.cost::numeric * i.span, 9223372036854775807)::bigint
			WHEN claim_ahead >= 0 THEN least(i.cost * i.span, least(claim_ahead, 4611686018427387904 / i.events) * i.events + i.room)
			ELSE 0 END) AS after
	FROM (SELECT now, (date_part('epoch', r.last_refill - now) * 1000000)::bigint AS ahead,
		(date_part('epoch', i.claimed - now) * 1000000)::bigint AS claim_ahead
	FROM (SELECT greatest(clock.now, r.last_refill - least(4611686018427387904 / i.events, 3155760000000000) * interval '1 microsecond') AS now
	OFFSET 0) a OFFSET 0) b OFFSET 0) c)
	WHERE r.tokens IS NULL AND r.last_refill IS NOT NULL`,
	scan: scanGCRA,
}

// scanGCRA reads tokens, where TokenBucket wrote the row, last_refill and
// remainder.
func scanGCRA(cells []cell, width int, rows []*row) {
	at := 0
	for _, r := range rows {
		if cells[at].Length == 8 && cells[at].Value != noTokens {
			r.tokens = math.Float64frombits(uint64(cells[at].Value))
			r.hasTokens = true
		}
		if cells[at+1].Length == 8 {
			r.refill = cells[at+1].Value + postgresEpoch
		}
		r.remainder = cells[at+2].Value
		at += width
	}
}
