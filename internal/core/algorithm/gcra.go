package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// GCRA is the generic cell rate algorithm (ITU-T I.371): Events are spread evenly over a Window, with bursts
// of up to Burst hits. It is implemented as a bucket that starts full, at Capacity, and gains one token each
// Window ÷ Events while it is not full. A TokenBucket with a Burst below its Events uses the same
// implementation: with refills by whole Windows, it would admit only Burst instead of Events in a Window.
//
// State: the columns of a token bucket and remainder, so that a change of Burst, Events or the algorithm
// keeps the tokens. The last refill was remainder ÷ Events microseconds after last_refill. All values are
// whole numbers, so no fraction of a token is lost. Limit.Validate bounds them by 2^62.

func init() {
	define(ratelimit.GCRA, Definition{
		Charge: chargeBucket, Adjust: adjustBucket, Peek: peekBucket, Passes: passesBucket, SQL: &gcraSQL,
	})
}

const (
	// gcraFillTimeSQL computes fillTime, and maxDebtSQL maxDebt.
	gcraFillTimeSQL = "({quota} * {span} + {events} - 1) / {events}"
	maxDebtSQL      = "least({quota}, 4611686018427387904 / {span} - {quota})"
)

// gcraFill computes bucketAt of a row r at {at} in SQL: the columns filled (tokens), refill and rest
// (remainder). From the inside: a has fills, which is fillTime; b what the row had at last_refill (NULL if it
// is not valid), the part of a token beside that, and the time since; c whether the bucket is full; d the
// tokens gained; e the time that these took.
const gcraFill = `(SELECT *, CASE WHEN had IS NULL THEN {at} WHEN isfull THEN greatest({at}, r.last_refill)
	ELSE r.last_refill + moved / events * interval '1 microsecond' END AS refill,
		CASE WHEN had IS NULL OR isfull THEN 0 ELSE moved % events END AS rest,
			coalesce(had + gained, {quota}) AS filled
	FROM (SELECT *, part + gained * span AS moved
	FROM (SELECT *, CASE WHEN isfull THEN {quota} - had WHEN had IS NOT NULL
		THEN greatest(0, elapsed * events - part) / span END AS gained
	FROM (SELECT *, had = {quota}
		OR elapsed >= (({quota} - had) * span + part + events - 1) / events AS isfull
	FROM (SELECT *, least(coalesce(r.remainder, 0), events - 1) AS part,
		greatest(0, (date_part('epoch', {at} - r.last_refill) * 1000000)::bigint) AS elapsed,
		CASE WHEN r.last_refill <= {at} OR r.last_refill <= {at} + (fills + 10000000)
			* interval '1 microsecond'
			THEN floor(greatest(-` + maxDebtSQL + `, least({quota}, r.tokens)))::bigint END AS had
	FROM (SELECT {span} AS span, {events} AS events, ` + gcraFillTimeSQL + ` AS fills
	OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d OFFSET 0) e OFFSET 0)`

// In Step, f has the granted hits, g the tokens left, and h the time at which the bucket is full. In Adjust,
// f has what is refunded, in tokens times span; g the tokens after that, and the part of one beside them; h
// how much earlier a refill gives that part; i that refill; j the same of a full bucket; k full_at.
var gcraSQL = SQL{
	Columns:  "tokens, last_refill, remainder",
	Returned: "tokens, last_refill, coalesce(remainder, 0)",
	Needs:    "events",
	Fresh: `{quota} - i.granted * {cost}, i.now, 0,
		i.now + ((i.granted * {cost} * {span} + {events} - 1) / {events}
		+ greatest(60000000, ` + gcraFillTimeSQL + `)) * interval '1 microsecond'`,
	Step: `SELECT excluded.ord, granted, CASE WHEN granted > 0 THEN left_over ELSE r.tokens END,
		CASE WHEN granted > 0 THEN refill ELSE r.last_refill END, CASE WHEN granted > 0 THEN rest
			ELSE r.remainder END,
		CASE WHEN r.expires_at >= full_at OR granted = 0 AND r.tokens IS NULL THEN r.expires_at
		ELSE full_at + greatest(60000000, fills) * interval '1 microsecond' END
	FROM (SELECT *, refill + (({quota} - left_over) * span + rest + events - 1) / events
		* interval '1 microsecond' AS full_at
	FROM (SELECT *, filled - granted * {cost} AS left_over
	FROM (SELECT *, greatest(0, least({most}, filled / {cost})) AS granted
	FROM ` + strings.ReplaceAll(gcraFill, "{at}", "excluded.last_refill") + ` e OFFSET 0) f OFFSET 0) g
		OFFSET 0) h`,
	Adjust: `(tokens, last_refill, remainder, expires_at) = (SELECT after, refill, rest, CASE WHEN {cost} >= 0
		OR r.expires_at >= full_at THEN r.expires_at
		ELSE full_at + greatest(60000000, ` + gcraFillTimeSQL + `) * interval '1 microsecond' END
	FROM (SELECT *, refill + (({quota} - after) * {span} + rest + {events} - 1) / {events}
		* interval '1 microsecond' AS full_at
	FROM (SELECT least({quota}, total) AS after, CASE WHEN total < {quota} THEN refill
		ELSE greatest({now}, r.last_refill) END AS refill,
		CASE WHEN total < {quota} THEN rest ELSE 0 END AS rest
	FROM (SELECT total, refill - back * interval '1 microsecond' AS refill,
		rest + back * {events} - part AS rest
	FROM (SELECT *, (part - rest + {events} - 1) / {events} AS back
	FROM (SELECT refill, rest, CASE WHEN {cost} > 0 THEN filled + units / {span}
		ELSE greatest(filled + {cost}, least(filled, -` + maxDebtSQL + `)) END AS total,
		units % {span} AS part
	FROM (SELECT *, greatest(0, least(greatest(0, {cost})::numeric * {span},
		9223372036854775807)::bigint - ` + drainedSQL + `) AS units
	FROM ` + strings.ReplaceAll(gcraFill, "{at}", "{now}") + ` e OFFSET 0) f OFFSET 0) g OFFSET 0) h
		OFFSET 0) i OFFSET 0) j OFFSET 0) k)`,
	AdjustWhere: "r.tokens IS NOT NULL AND r.last_refill <= {now} + (" + gcraFillTimeSQL +
		" + 10000000) * interval '1 microsecond' AND " + notDrainedSQL,
	Read: readGCRA,
}

// readGCRA implements SQL.Read for tokens, last_refill and remainder.
func readGCRA(cells []Cell, width int, rows []*Row) {
	readBucket(cells, width, rows)
	at := 2
	for _, r := range rows {
		r.Remainder = cells[at].Value
		at += width
	}
}
