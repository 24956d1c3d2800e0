package ratelimit

import "math"

// tokenBucket admits a hit while the bucket holds its cost in tokens. The
// bucket starts full, at Capacity, and gains Events tokens at the end of each
// Window since last_refill, up to Capacity. last_refill moves by whole Windows:
// moved to now, as is often done, it would lose the part of a Window that has
// passed and starve a steady client.
//
// State: tokens, last_refill. Without a row the bucket is full; expires_at lies
// at or after the time at which it is, on a coarse grid (it is indexed, and an
// update that changes an indexed column costs more).
var tokenBucket = algorithm{takeBucket, refundBucket, lookBucket, nil, retryBucket, claimBucket, &tokenBucketSQL}

// Grid of expires_at: a bucket's row outlives the refill by at least this.
const bucketLinger = 60 * 1000000

// horizon bounds, in microseconds, how far ahead expires_at lies: a hundred years.
const horizon = int64(MaxWindow / 1000)

// fill returns the tokens at now, and the refill time that goes with them. A
// row that GCRA wrote says when the bucket would be full.
func fill(l *Limit, r *row, now int64) (tokens float64, refill int64) {
	most, events := float64(capacity(l)), float64(l.Events)
	if r.refill == 0 {
		return most, now
	}
	if !r.hasTokens {
		return math.Max(0, most-math.Ceil(float64(larger(0, r.refill-now))*events/float64(window(l)))), now
	}
	windows := larger(0, now-r.refill) / window(l)
	// The conversion keeps a compiler from fusing product and sum.
	return math.Min(most, r.tokens+float64(float64(windows)*events)), r.refill + windows*window(l)
}

// fillTime is the time in which so many tokens come in: whole windows. It is
// bounded, by far more than anyone waits, so that a time can be added to it.
func fillTime(l *Limit, tokens float64) int64 {
	const most = int64(1) << 61
	windows := (int64(math.Ceil(tokens)) + l.Events - 1) / l.Events
	if windows > most/window(l) {
		return most
	}
	return windows * window(l)
}

func takeBucket(l *Limit, r *row, now, n, cost int64) int64 {
	tokens, refill := fill(l, r, now)
	granted := fit(int64(math.Floor(tokens)), n, cost)
	if granted > 0 {
		r.tokens, r.hasTokens, r.refill = tokens-float64(granted*cost), true, refill
	}
	if !r.hasTokens {
		return 0
	}
	full := r.refill + smaller(horizon, fillTime(l, float64(capacity(l))-r.tokens))
	if r.expires < full {
		r.expires = full + larger(bucketLinger, smaller(horizon, fillTime(l, float64(capacity(l)))))
	}
	return granted
}

// refundBucket gives back no more of a claim than the bucket would hold now had
// the hit not been: what a full bucket would have spilled since is gone.
func refundBucket(l *Limit, r *row, now, cost int64, c *claim) {
	if !r.hasTokens {
		return
	}
	tokens, refill := fill(l, r, now)
	back := float64(cost)
	if c != nil {
		gained := float64(larger(0, refill-c.at)/window(l)) * float64(l.Events)
		back = math.Max(0, math.Min(back, float64(c.room)-gained))
	}
	r.tokens = math.Min(float64(capacity(l)), tokens+back)
	r.refill = refill
}

func lookBucket(l *Limit, r *row, now int64) (free, reset int64) {
	tokens, refill := fill(l, r, now)
	if missing := float64(capacity(l)) - tokens; missing > 0 {
		return int64(math.Floor(tokens)), refill + fillTime(l, missing)
	}
	return int64(math.Floor(tokens)), larger(now, refill)
}

func retryBucket(l *Limit, r *row, now, cost int64) int64 {
	tokens, refill := fill(l, r, now)
	return refill + fillTime(l, float64(cost)-tokens)
}

// claimBucket holds the refill time and how much the bucket then lacked.
func claimBucket(l *Limit, r *row, now int64) claim {
	return claim{at: r.refill, room: capacity(l) - int64(math.Floor(r.tokens))}
}

var tokenBucketSQL = stepSQL{
	columns: "tokens, last_refill",
	needs:   []parameter{eventsParameter},
	fresh: `i.quota - i.granted * i.cost, clock.now, clock.now + (
		least(ceil(i.granted * i.cost / i.events::float8) * i.span, 3155760000000000)
		+ greatest(60000000, least(ceil(i.quota / i.events::float8) * i.span, 3155760000000000))) * interval '1 microsecond'`,
	step: `SELECT excluded.slot, granted, tokens, refill, CASE WHEN r.expires_at >= full_at OR tokens IS NULL THEN r.expires_at
		ELSE full_at + greatest(60000000, least(ceil({quota} / {events}::float8) * span, 3155760000000000)) * interval '1 microsecond' END
	FROM (SELECT *, refill + least(ceil(({quota} - tokens) / {events}) * span, 3155760000000000) * interval '1 microsecond' AS full_at
	FROM (SELECT granted, span, CASE WHEN granted > 0 THEN filled - granted * {cost} ELSE r.tokens END AS tokens,
		CASE WHEN granted > 0 THEN coalesce(r.last_refill + windows * span * interval '1 microsecond', excluded.last_refill) ELSE r.last_refill END AS refill
	FROM (SELECT *, greatest(0, least(excluded.granted, floor(filled)::bigint / {cost})) AS granted
	FROM (SELECT *, CASE WHEN windows IS NOT NULL THEN least({quota}, r.tokens + windows::float8 * {events})
		WHEN r.last_refill IS NULL THEN {quota}
		ELSE greatest(0, {quota} - ceil(greatest(0, (date_part('epoch', r.last_refill - excluded.last_refill) * 1000000)::bigint)::float8 * {events} / span)) END AS filled
	FROM (SELECT {span} AS span, CASE WHEN r.tokens IS NOT NULL THEN
		greatest(0, (date_part('epoch', excluded.last_refill - r.last_refill) * 1000000)::bigint) / {span} END AS windows
	OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d OFFSET 0) e`,
	refund: `(tokens, last_refill) = (SELECT least(i.quota, filled + back), refill
	FROM (SELECT *, CASE WHEN i.claimed IS NULL THEN i.cost ELSE greatest(0, least(i.cost, i.room
		- (greatest(0, (date_part('epoch', refill - i.claimed) * 1000000)::bigint) / i.span)::float8 * i.events)) END AS back
	FROM (SELECT least(i.quota, r.tokens + windows::float8 * i.events) AS filled,
		r.last_refill + windows * i.span * interval '1 microsecond' AS refill
	FROM (SELECT greatest(0, (date_part('epoch', clock.now - r.last_refill) * 1000000)::bigint) / i.span AS windows OFFSET 0) a OFFSET 0) b OFFSET 0) c)
	WHERE r.tokens IS NOT NULL AND r.last_refill IS NOT NULL`,
	scan: scanBucket,
}

// scanBucket reads tokens and last_refill.
func scanBucket(cells []cell, width int, rows []*row) {
	at := 0
	for _, r := range rows {
		r.tokens = math.Float64frombits(uint64(cells[at].Value))
		r.hasTokens = cells[at].Length == 8
		if cells[at+1].Length == 8 {
			r.refill = cells[at+1].Value + postgresEpoch
		}
		at += width
	}
}
