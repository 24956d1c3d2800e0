package algorithm

import (
	"sort"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A sliding log admits a hit if its cost and the costs in the Window before it add up to at most Events. It
// is exact. A row holds the time of each hit (three times for a cost of 3). The time and space for a row are
// therefore proportional to Events, hence ratelimit.MaxLogEvents.
//
// State: hits, oldest first. expires_at is the time at which the newest hit expires.

func init() {
	define(ratelimit.SlidingLog, Definition{
		Charge: chargeLog, Adjust: adjustLog, Peek: peekLog, Passes: passesLog, SQL: &slidingLogSQL,
	})
}

// liveHits returns the hits in the Window that ends at the time at. at is the later of now and the time of
// the newest hit.
func liveHits(l *ratelimit.Limit, r *Row, now int64) (hits []int64, at int64) {
	if len(r.Hits) == 0 || countsAsNew(l, r, now) {
		return nil, now
	}
	at = larger(now, r.Hits[len(r.Hits)-1])
	cutoff := at - window(l)
	return r.Hits[sort.Search(len(r.Hits), func(i int) bool { return r.Hits[i] > cutoff }):], at
}

func chargeLog(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	live, at := liveHits(l, r, now)
	granted := fit(l.Events-int64(len(live)), n, cost)
	if granted == 0 {
		return 0
	}
	hits := append([]int64(nil), live...)
	for i := int64(0); i < granted*cost; i++ {
		hits = append(hits, at)
	}
	r.Hits = hits
	r.Expires = at + window(l)
	return granted
}

// adjustLog removes hits of the charge, or the newest hits. It adds no hits for a negative cost, because the
// length of the log would have no bound.
func adjustLog(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	if countsAsNew(l, r, now) {
		return
	}
	first := 0
	last := len(r.Hits)
	if at != 0 {
		first = sort.Search(last, func(i int) bool { return r.Hits[i] >= at })
		last = sort.Search(last, func(i int) bool { return r.Hits[i] > at })
	}
	removed := int(smaller(larger(0, cost), int64(last-first)))
	hits := append([]int64(nil), r.Hits[:last-removed]...)
	r.Hits = append(hits, r.Hits[last:]...)
}

func peekLog(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	live, at := liveHits(l, r, now)
	if len(live) == 0 {
		return l.Events, at
	}
	return l.Events - int64(len(live)), live[0] + window(l)
}

func passesLog(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
	live, _ := liveHits(l, r, now)
	missing := cost - (l.Events - int64(len(live)))
	if missing < 1 {
		return now // the hit passes now: another hit of its request was on the row
	}
	return live[missing-1] + window(l)
}

// slidingLogSQL searches the sorted array with width_bucket, which returns the number of elements that are
// not above its first argument.
var slidingLogSQL = SQL{
	Columns: "hits",
	Fresh:   "array_fill(i.now, ARRAY[(i.granted * {cost})::int]), i.now + {span} * interval '1 microsecond'",
	Step: `SELECT excluded.ord, granted,
		CASE WHEN granted > 0 THEN r.hits[gone + 1:] || array_fill(at, ARRAY[(granted * {cost})::int])
			ELSE r.hits END,
		CASE WHEN granted > 0 THEN at + {span} * interval '1 microsecond' ELSE r.expires_at END
	FROM (SELECT *, greatest(0, least({most},
		({quota} - coalesce(cardinality(r.hits), 0) + gone) / {cost})) AS granted
	FROM (SELECT CASE WHEN last > excluded.expires_at AND last > excluded.expires_at + interval '10 s'
		THEN excluded.hits[1] ELSE last END AS at,
		coalesce(CASE WHEN last > excluded.expires_at AND last > excluded.expires_at + interval '10 s'
			THEN cardinality(r.hits) ELSE width_bucket(last - {span} * interval '1 microsecond',
			r.hits) END, 0) AS gone
	FROM (SELECT greatest(excluded.hits[1], r.hits[cardinality(r.hits)]) AS last
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	Adjust: `hits = (SELECT r.hits[:newest - least(greatest(0, {cost}), newest - older)::int] ||
		r.hits[newest + 1:]
	FROM (SELECT CASE WHEN {claimed} IS NULL THEN cardinality(r.hits)
		ELSE width_bucket({claimed}, r.hits) END AS newest,
		CASE WHEN {claimed} IS NULL THEN 0 ELSE width_bucket({claimed} - interval '1 microsecond',
			r.hits) END AS older OFFSET 0) a)`,
	AdjustWhere: "r.hits[cardinality(r.hits)] <= {now} + ({span} + 10000000) * interval '1 microsecond'",
	ReadArray:   func(column []byte, r *Row) { r.Hits = timestamps(column) },
}
