package algorithm

import (
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// GCRA is the generic cell rate algorithm (ITU-T I.371): Events are spread evenly over a
// Window, and up to Burst may pass at once. It keeps one time, the theoretical arrival
// time (TAT): when the backlog of the admitted hits will have drained, at Events a
// Window. A hit passes if, together with its cost, the backlog is no more than Burst.
//
// The backlog is counted in units. A hit adds its cost times the Window in microseconds,
// and Events units drain each microsecond: whole numbers, so no rate is rounded.
//
// State: last_refill is the TAT in whole microseconds, rounded down; remainder is the
// units above it. expires_at lies at or after the TAT, and changes rarely.
func init() {
	define(ratelimit.GCRA, "gcra", Definition{
		Take: takeGCRA, Adjust: adjustGCRA, Look: lookGCRA, Passes: passesGCRA, SQL: &gcraSQL,
	})
}

// maxSpan is the largest backlog. Limit.Validate keeps Capacity times the Window below it.
const maxSpan = int64(1) << 62

// gcraTime returns the time that counts: now, unless the clock was set back so far that
// the backlog would exceed maxSpan; then the earliest time at which it does not.
func gcraTime(l *ratelimit.Limit, r *Row, now int64) int64 {
	if r.Refill == 0 {
		return now
	}
	return larger(now, r.Refill-smaller(maxSpan/l.Events, horizon))
}

// backlog is how many units have yet to drain at now. If a token bucket wrote the row, its
// missing tokens count as a backlog that has drained evenly since the refill.
func backlog(l *ratelimit.Limit, r *Row, now int64) int64 {
	switch {
	case r.Refill == 0:
		return 0
	case r.HasTokens:
		missing := l.Capacity() - smaller(l.Capacity(), larger(0, int64(r.Tokens)))
		return larger(0, missing*window(l)-smaller(larger(0, now-r.Refill), maxSpan/l.Events)*l.Events)
	}
	return undrained(l, r.Refill-now, smaller(r.Remainder, l.Events-1))
}

// undrained is the backlog of a TAT that lies this many microseconds ahead.
func undrained(l *ratelimit.Limit, microseconds, remainder int64) int64 {
	if microseconds < 0 {
		return 0
	}
	return smaller(microseconds, maxSpan/l.Events)*l.Events + remainder
}

// storeBacklog writes a backlog into the row.
func storeBacklog(l *ratelimit.Limit, r *Row, now, backlog int64) {
	r.Refill = now + backlog/l.Events
	r.Remainder = backlog % l.Events
	r.Tokens, r.HasTokens = 0, false
}

func takeGCRA(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	now = gcraTime(l, r, now)
	filled := backlog(l, r, now)
	granted := fit(l.Capacity()*window(l)-filled, n, cost*window(l))
	if granted == 0 {
		return 0
	}
	storeBacklog(l, r, now, filled+granted*cost*window(l))
	keepBacklog(l, r)
	return granted
}

// keepBacklog has the row outlive the backlog.
func keepBacklog(l *ratelimit.Limit, r *Row) {
	if r.Expires <= r.Refill {
		r.Expires = r.Refill + larger(bucketLinger, l.Capacity()*window(l)/l.Events)
	}
}

// adjustGCRA gives back what cannot have drained since the charge. What is charged drains from now on.
func adjustGCRA(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	drained, over := drainedSince(l, now, at)
	if r.Refill == 0 || r.HasTokens || over {
		return
	}
	now = gcraTime(l, r, now)
	filled := backlog(l, r, now)
	if cost >= 0 {
		storeBacklog(l, r, now, larger(0, filled-larger(0, mulDiv(cost, window(l), 1, false)-drained)))
		return
	}
	most := smaller(2*smaller(l.Capacity()*window(l), maxSpan/2), smaller(maxSpan/l.Events, horizon)*l.Events)
	storeBacklog(l, r, now, filled+smaller(mulDiv(-cost, window(l), 1, false), larger(0, most-filled)))
	keepBacklog(l, r)
}

func lookGCRA(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	now = gcraTime(l, r, now)
	filled := backlog(l, r, now)
	drained := now + mulDiv(filled, 1, l.Events, true)
	room := l.Capacity()*window(l) - filled
	if room < 0 {
		return -mulDiv(-room, 1, window(l), true), drained
	}
	return room / window(l), drained
}

func passesGCRA(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
	now = gcraTime(l, r, now)
	excess := backlog(l, r, now) + (cost-l.Capacity())*window(l)
	return now + mulDiv(excess, 1, l.Events, true)
}

var gcraSQL = SQL{
	Columns:  "tokens, last_refill, remainder",
	Returned: "coalesce(tokens, 'NaN'), last_refill, remainder",
	Needs:    []Parameter{EventsParameter},
	Fresh: `NULL, i.now + i.granted * {cost} * {span} / {events} * interval '1 microsecond', i.granted * {cost} * {span} % {events},
		i.now + (i.granted * {cost} * {span} / {events} + greatest(60000000, {quota} * {span} / {events})) * interval '1 microsecond'`,
	Step: `SELECT excluded.slot, granted, CASE WHEN granted = 0 THEN r.tokens END,
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
	Adjust: `(last_refill, remainder, expires_at) = (SELECT tat, after % {events}, CASE WHEN {cost} >= 0 OR r.expires_at > tat THEN r.expires_at
		ELSE tat + greatest(60000000, {quota} * {span} / {events}) * interval '1 microsecond' END
	FROM (SELECT *, now + after / {events} * interval '1 microsecond' AS tat
	FROM (SELECT now, CASE WHEN {cost} >= 0 THEN greatest(0, backlog - greatest(0, units - ` + drainedSQL + `))
		ELSE backlog + least(units, greatest(0, least(2 * least({quota} * {span}, 2305843009213693952),
			least(4611686018427387904 / {events}, 3155760000000000) * {events}) - backlog)) END AS after
	FROM (SELECT now, CASE WHEN ahead >= 0 THEN least(ahead, 4611686018427387904 / {events}) * {events} + least(coalesce(r.remainder, 0), {events} - 1) ELSE 0 END AS backlog,
		least(abs({cost})::numeric * {span}, 9223372036854775807)::bigint AS units
	FROM (SELECT now, (date_part('epoch', r.last_refill - now) * 1000000)::bigint AS ahead
	FROM (SELECT greatest({now}, r.last_refill - least(4611686018427387904 / {events}, 3155760000000000) * interval '1 microsecond') AS now
	OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d OFFSET 0) e)`,
	AdjustWhere: "r.tokens IS NULL AND r.last_refill IS NOT NULL AND " + notDrainedSQL,
	Read:        readGCRA,
}

// readGCRA reads tokens, last_refill and remainder. Tokens are there if a token bucket wrote the
// row; else a statement returns NaN.
func readGCRA(cells []Cell, width int, rows []*Row) {
	readBucket(cells, width, rows)
	at := 2
	for _, r := range rows {
		// Such a row is of GCRA itself.
		if math.IsNaN(r.Tokens) {
			r.Tokens = 0
			r.HasTokens = false
		}
		r.Remainder = cells[at].Value
		at += width
	}
}
