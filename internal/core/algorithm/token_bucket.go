package algorithm

import (
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A token bucket admits a hit while it holds the hit's cost in tokens. It starts full,
// at Capacity, and gains Events tokens at the end of each Window since last_refill, up
// to Capacity. last_refill advances by whole Windows. If it were set to now, the part of
// a Window that has passed would be lost, and a steady client would starve.
//
// State: tokens, last_refill. Without a row the bucket is full. expires_at lies at or
// after the time at which the bucket is full, and changes rarely: it is indexed, and an
// update of an indexed column costs more.

func init() {
	define(ratelimit.TokenBucket, "token_bucket", Definition{
		Take: takeBucket, Adjust: adjustBucket, Peek: peekBucket, Passes: passesBucket, Lease: leaseOfBucket,
		SQL: &tokenBucketSQL,
	})
}

// bucketLinger is the shortest time, in microseconds, by which a bucket's row outlives the refill.
const bucketLinger = 60 * 1000000

// maxExpiry bounds how far expires_at lies in the future: a hundred years, in microseconds.
const maxExpiry = int64(ratelimit.MaxWindow / 1000)

// bucketAt returns the tokens at now, and the time of the last refill.
func bucketAt(l *ratelimit.Limit, r *Row, now int64) (tokens float64, refill int64) {
	most, events := float64(l.Capacity()), float64(l.Events)
	if r.Refill == 0 || !r.HasTokens || bucketAhead(l, r, now) {
		return most, now
	}
	windows := larger(0, now-r.Refill) / window(l)
	// The conversion keeps the compiler from fusing product and sum into one rounding.
	return math.Min(most, r.Tokens+float64(float64(windows)*events)), r.Refill + windows*window(l)
}

// bucketAhead reports whether the last refill lies so far ahead that the row counts as new.
func bucketAhead(l *ratelimit.Limit, r *Row, now int64) bool {
	return ahead(r.Refill, now, bucketLength(l))
}

// bucketLength returns the time in which an empty bucket fills, in microseconds, at most maxExpiry.
func bucketLength(l *ratelimit.Limit) int64 {
	return smaller(maxExpiry, fillTime(l, float64(l.Capacity())))
}

// bucketFillsSQL computes bucketLength.
const bucketFillsSQL = "least(ceil({quota} / {events}::float8) * {span}, 3155760000000000)"

// fillTime returns the time in which the given number of tokens is added, in whole windows. Its bound
// exceeds any wait, and is low enough that adding a time to it does not overflow.
func fillTime(l *ratelimit.Limit, tokens float64) int64 {
	const most = int64(1) << 61
	windows := (int64(math.Ceil(tokens)) + l.Events - 1) / l.Events
	if windows > most/window(l) {
		return most
	}
	return windows * window(l)
}

func takeBucket(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	tokens, refill := bucketAt(l, r, now)
	granted := fit(int64(math.Floor(tokens)), n, cost)
	if granted > 0 {
		r.Tokens, r.HasTokens, r.Refill = tokens-float64(granted*cost), true, refill
	}
	if !r.HasTokens {
		return 0
	}
	extendBucket(l, r)
	return granted
}

// extendBucket moves the row's Expires beyond the time at which the bucket is full.
func extendBucket(l *ratelimit.Limit, r *Row) {
	full := r.Refill + smaller(maxExpiry, fillTime(l, float64(l.Capacity())-r.Tokens))
	if r.Expires < full {
		r.Expires = full + larger(bucketLinger, smaller(maxExpiry, fillTime(l, float64(l.Capacity()))))
	}
}

// adjustBucket has no effect after a refill; see leaseOfBucket. A float64 holds all differences of
// tokens exactly.
func adjustBucket(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	if !r.HasTokens || bucketAhead(l, r, now) || at != 0 && (at < r.Refill || now >= r.Refill+window(l)) {
		return
	}
	most := l.Capacity()
	tokens, refill := bucketAt(l, r, now)
	r.Tokens = math.Min(float64(most),
		math.Max(tokens+float64(cost), math.Min(tokens, float64(-smaller(most, ratelimit.MaxEvents-most)))))
	r.Refill = refill
	if cost < 0 {
		extendBucket(l, r)
	}
}

func peekBucket(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	tokens, refill := bucketAt(l, r, now)
	if missing := float64(l.Capacity()) - tokens; missing > 0 {
		return int64(math.Floor(tokens)), refill + fillTime(l, missing)
	}
	return int64(math.Floor(tokens)), larger(now, refill)
}

// leaseOfBucket lets units live until the next refill. Charging early differs from charging late if a
// bucket that would have been full meanwhile gains tokens: a full bucket of 100 is charged 50 in
// advance, gains 50 at its next refill, and holds 100. If the 50 were used then, 150 would pass at
// once. Between two refills the time of a charge makes no difference. Tokens missing before the charge
// do not extend this: they may be units that another process holds, and releases before the refill.
//
// A refund after a refill would add to a full bucket. So units are used for at most three quarters of
// the time until the refill, and released before it. The claim is last_refill: an adjustment after a
// refill or a reset has no effect.
func leaseOfBucket(l *ratelimit.Limit, r *Row, now, most int64) (life, claim int64) {
	end := r.Refill + window(l) - now
	return smaller(most, end-end/4), r.Refill
}

func passesBucket(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
	tokens, refill := bucketAt(l, r, now)
	return refill + fillTime(l, float64(cost)-tokens)
}

var tokenBucketSQL = SQL{
	Columns: "tokens, last_refill",
	Needs:   []Parameter{EventsParameter},
	Fresh: `{quota} - i.granted * {cost}, i.now, i.now + (
		least(ceil(i.granted * {cost} / {events}::float8) * {span}, 3155760000000000)
		+ greatest(60000000, ` + bucketFillsSQL + `)) * interval '1 microsecond'`,
	Step: `SELECT excluded.slot, granted, tokens, refill, CASE WHEN r.expires_at >= full_at OR tokens IS NULL
		THEN r.expires_at
		ELSE full_at + greatest(60000000, fills) * interval '1 microsecond' END
	FROM (SELECT *, refill + least(ceil(({quota} - tokens) / {events}) * span,
		3155760000000000) * interval '1 microsecond' AS full_at
	FROM (SELECT granted, span, fills, CASE WHEN granted > 0 THEN filled - granted * {cost}
		ELSE r.tokens END AS tokens,
		CASE WHEN granted > 0 THEN coalesce(r.last_refill + windows * span * interval '1 microsecond',
			excluded.last_refill) ELSE r.last_refill END AS refill
	FROM (SELECT *, greatest(0, least(excluded.granted, floor(filled)::bigint / {cost})) AS granted
	FROM (SELECT *, CASE WHEN windows IS NOT NULL THEN least({quota}, r.tokens + windows::float8 * {events})
		ELSE {quota} END AS filled
	FROM (SELECT *, CASE WHEN r.tokens IS NOT NULL AND (r.last_refill <= excluded.last_refill
		OR r.last_refill <= excluded.last_refill + (fills + 10000000) * interval '1 microsecond') THEN
		greatest(0, (date_part('epoch', excluded.last_refill - r.last_refill) * 1000000)::bigint) / span END
			AS windows
	FROM (SELECT {span} AS span, ` + bucketFillsSQL + ` AS fills
	OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d OFFSET 0) e OFFSET 0) f`,
	Adjust: `(tokens, last_refill, expires_at) = (SELECT tokens, refill, CASE WHEN {cost} >= 0
		OR r.expires_at >= full_at THEN r.expires_at
		ELSE full_at + greatest(60000000, ` + bucketFillsSQL + `) * interval '1 microsecond' END
	FROM (SELECT *, refill + least(ceil(({quota} - tokens) / {events}) * {span},
		3155760000000000) * interval '1 microsecond' AS full_at
	FROM (SELECT least({quota}, greatest(filled + {cost},
		least(filled, -least({quota}, 9007199254740992 - {quota})))) AS tokens, refill
	FROM (SELECT least({quota}, r.tokens + windows::float8 * {events}) AS filled,
		r.last_refill + windows * {span} * interval '1 microsecond' AS refill
	FROM (SELECT greatest(0, (date_part('epoch',
		{now} - r.last_refill) * 1000000)::bigint) / {span} AS windows OFFSET 0) a OFFSET 0) b OFFSET 0) c
			OFFSET 0) d)`,
	AdjustWhere: "r.tokens IS NOT NULL AND r.last_refill <= {now} + (" + bucketFillsSQL +
		" + 10000000) * interval '1 microsecond' AND ({claimed} IS NULL OR r.last_refill <= {claimed} " +
		"AND {now} < r.last_refill + {span} * interval '1 microsecond')",
	Read: readBucket,
}

// readBucket implements SQL.Read for tokens and last_refill.
func readBucket(cells []Cell, width int, rows []*Row) {
	at := 0
	for _, r := range rows {
		r.Tokens = math.Float64frombits(uint64(cells[at].Value))
		r.HasTokens = cells[at].Length == 8
		if cells[at+1].Length == 8 {
			r.Refill = cells[at+1].Value + PostgresEpoch
		}
		at += width
	}
}
