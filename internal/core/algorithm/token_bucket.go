package algorithm

import (
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A token bucket admits a hit while it holds the hit's cost in tokens. It starts full, at Capacity, and gains
// Events tokens at the end of each Window since last_refill, up to Capacity. last_refill advances by whole
// Windows. Setting it to now would lose the elapsed part of the Window, and a steady client would starve.
//
// State: tokens, last_refill. Without a row the bucket is full. expires_at lies at or after the time at which
// the bucket is full, and changes rarely: it is indexed, and an update of an indexed column costs more.

func init() {
	define(ratelimit.TokenBucket, Definition{
		Charge: chargeBucket, Adjust: adjustBucket, Peek: peekBucket, Passes: passesBucket,
		Lease: leaseOfBucket, SQL: &tokenBucketSQL,
	})
}

// bucketLinger is the minimum time, in microseconds, for which the row of a full bucket is kept.
const bucketLinger = 60 * 1000000

// maxExpiry bounds the time until expires_at: a hundred years, in microseconds.
const maxExpiry = int64(ratelimit.MaxWindow / 1000)

// maxSpan bounds tokens times the Window. For a bucket that is refilled evenly, Limit.Validate bounds
// Capacity times the Window by maxSpan. A sum of maxSpan and a time does not overflow.
const maxSpan = int64(1) << 62

// bucket is the state of a bucket at a time. The last refill was remainder ÷ parts microseconds after refill,
// see schedule. It may be later than the time if the clock was set back. A float64 holds all differences of
// tokens exactly.
type bucket struct {
	tokens            float64
	refill, remainder int64
}

// evenly reports whether a bucket gains tokens one by one.
func evenly(l *ratelimit.Limit) bool { return l.Algorithm == ratelimit.GCRA || l.RefillsEvenly() }

// schedule returns the refill schedule of a bucket, which gains step tokens each Window ÷ parts.
func schedule(l *ratelimit.Limit) (step, parts int64) {
	if evenly(l) {
		return 1, l.Events
	}
	return l.Events, 1
}

// bucketAt returns the bucket of a row at now.
func bucketAt(l *ratelimit.Limit, r *Row, now int64) bucket {
	full := float64(l.Capacity())
	if r.Refill == 0 || !r.HasTokens || countsAsNew(l, r, now) {
		return bucket{full, now, 0}
	}
	step, parts := schedule(l)
	b := bucket{r.Tokens, r.Refill, smaller(r.Remainder, parts-1)}
	elapsed := larger(0, now-r.Refill)
	if evenly(l) {
		b.tokens = math.Floor(math.Max(float64(-maxDebt(l)), math.Min(full, r.Tokens)))
		if b.tokens == full || now >= b.timeOf(l, full) {
			return bucket{full, r.Refill + elapsed, 0}
		}
	}
	steps := larger(0, elapsed*parts-b.remainder) / window(l)
	moved := b.remainder + steps*window(l)
	// The conversion prevents the compiler from fusing product and sum into one rounding.
	gained := float64(float64(steps) * float64(step))
	return bucket{math.Min(full, b.tokens+gained), r.Refill + moved/parts, moved % parts}
}

// timeOf returns the time at which the bucket will have the given tokens. It must have fewer now.
func (b bucket) timeOf(l *ratelimit.Limit, tokens float64) int64 {
	step, parts := schedule(l)
	steps := (int64(math.Ceil(tokens-b.tokens)) + step - 1) / step
	if steps > maxSpan/window(l) {
		return b.refill + maxSpan
	}
	return b.refill + (steps*window(l)+b.remainder+parts-1)/parts
}

// fillTime returns the time in which an empty bucket fills, in microseconds, at most maxExpiry.
func fillTime(l *ratelimit.Limit) int64 {
	empty := bucket{}
	return smaller(maxExpiry, empty.timeOf(l, float64(l.Capacity())))
}

// bucketFillsSQL computes fillTime of a token bucket.
const bucketFillsSQL = "least(ceil({quota} / {events}::float8) * {span}, 3155760000000000)"

// maxDebt returns the maximum debt of tokens for which calculations do not overflow. Adjustments stop at this
// debt.
func maxDebt(l *ratelimit.Limit) int64 {
	most := int64(ratelimit.MaxEvents)
	if evenly(l) {
		most = maxSpan / window(l)
	}
	return smaller(l.Capacity(), most-l.Capacity())
}

func (b bucket) store(l *ratelimit.Limit, r *Row) {
	r.Tokens = b.tokens
	r.HasTokens = true
	r.Refill = b.refill
	if evenly(l) {
		r.Remainder = b.remainder
	}
}

// extend moves the row's Expires beyond the time when the bucket is full.
func (b bucket) extend(l *ratelimit.Limit, r *Row) {
	full := b.timeOf(l, float64(l.Capacity()))
	if !evenly(l) {
		full = smaller(full, b.refill+maxExpiry)
	}
	if r.Expires < full {
		r.Expires = full + larger(bucketLinger, fillTime(l))
	}
}

func chargeBucket(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	b := bucketAt(l, r, now)
	granted := fit(int64(math.Floor(b.tokens)), n, cost)
	switch {
	case granted > 0:
		b.tokens -= float64(granted * cost)
		b.store(l, r)
	case !r.HasTokens:
		return 0
	case !evenly(l): // maxExpiry counts from the refill in the row
		b.refill = r.Refill
		b.tokens = r.Tokens
	}
	b.extend(l, r)
	return granted
}

// adjustBucket refunds the part of the cost that cannot have been refilled since the charge. If the bucket is
// refilled evenly, adjustBucket refunds a fraction of a token by moving the last refill back.
func adjustBucket(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	gained, over := drainedSince(l, r, now, at)
	if r.Refill == 0 || !r.HasTokens || over || countsAsNew(l, r, now) {
		return
	}
	b := bucketAt(l, r, now)
	switch {
	case cost <= 0:
		b.tokens = math.Max(b.tokens+float64(cost), math.Min(b.tokens, float64(-maxDebt(l))))
	case evenly(l):
		units := larger(0, mulDiv(cost, window(l), 1, false)-gained)
		b.tokens += float64(units / window(l))
		part := units % window(l)
		back := (part - b.remainder + l.Events - 1) / l.Events
		b.refill -= back
		b.remainder += back*l.Events - part
	default:
		b.tokens += float64(cost)
	}
	if full := float64(l.Capacity()); b.tokens >= full {
		b.tokens = full
		if evenly(l) {
			b.refill = larger(now, r.Refill) // a full bucket gains nothing
			b.remainder = 0
		}
	}
	b.store(l, r)
	if cost < 0 {
		b.extend(l, r)
	}
}

func peekBucket(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	b := bucketAt(l, r, now)
	free = int64(math.Floor(b.tokens))
	if full := float64(l.Capacity()); b.tokens < full {
		return free, b.timeOf(l, full)
	}
	return free, larger(now, b.refill)
}

func passesBucket(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
	return bucketAt(l, r, now).timeOf(l, float64(cost))
}

// leaseOfBucket bounds the life of units by the next refill. An early charge differs from a late one if the
// bucket would otherwise have been full at a refill. For example, a full bucket of 100 is charged 50 in
// advance, gains 50 at its next refill, and holds 100. If the 50 leased units were used then, a burst of 150
// would pass. Between two refills, the time of a charge makes no difference. Tokens that were missing before
// the charge do not extend the life: they may be units of another process, which releases them before the
// refill.
//
// A refund after a refill would add tokens to a full bucket. Therefore units live for at most three quarters
// of the time until the refill, and unused ones are released before it. The claim is last_refill, so that an
// adjustment after a refill or a reset has no effect.
func leaseOfBucket(l *ratelimit.Limit, r *Row, now, maxLife int64) (life, claim int64) {
	end := r.Refill + window(l) - now
	return smaller(maxLife, end-end/4), r.Refill
}

var tokenBucketSQL = SQL{
	Columns: "tokens, last_refill",
	Needs:   "events",
	Fresh: `{quota} - i.granted * {cost}, i.now, i.now + (
		least(ceil(i.granted * {cost} / {events}::float8) * {span}, 3155760000000000)
		+ greatest(60000000, ` + bucketFillsSQL + `)) * interval '1 microsecond'`,
	Step: `SELECT excluded.ord, granted, tokens, refill, CASE WHEN r.expires_at >= full_at OR tokens IS NULL
		THEN r.expires_at
		ELSE full_at + greatest(60000000, fills) * interval '1 microsecond' END
	FROM (SELECT *, refill + least(ceil(({quota} - tokens) / {events}) * span,
		3155760000000000) * interval '1 microsecond' AS full_at
	FROM (SELECT granted, span, fills, CASE WHEN granted > 0 THEN filled - granted * {cost}
		ELSE r.tokens END AS tokens,
		CASE WHEN granted > 0 THEN coalesce(r.last_refill + windows * span * interval '1 microsecond',
			excluded.last_refill) ELSE r.last_refill END AS refill
	FROM (SELECT *, greatest(0, least({most}, floor(filled)::bigint / {cost})) AS granted
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
