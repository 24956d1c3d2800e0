package ratelimit

import "sort"

// slidingLog admits a hit if with its cost there were no more than Events in the
// Window up to it: exact, at the price of a row that holds the time of each hit
// (a hit of cost 3 stands in it three times). Reading and writing a row costs
// time and space in proportion to Events, hence MaxLogEvents.
//
// State: hits, oldest first. expires_at is when the newest is a Window old.
var slidingLog = algorithm{takeLog, refundLog, lookLog, nil, retryLog, claimNewest, &slidingLogSQL}

// live returns the hits younger than a Window, and the time that counts.
func live(l *Limit, r *row, now int64) (hits []int64, at int64) {
	if len(r.hits) == 0 {
		return nil, now
	}
	at = larger(now, r.hits[len(r.hits)-1])
	cutoff := at - window(l)
	return r.hits[sort.Search(len(r.hits), func(i int) bool { return r.hits[i] > cutoff }):], at
}

func takeLog(l *Limit, r *row, now, n, cost int64) int64 {
	young, at := live(l, r, now)
	granted := fit(l.Events-int64(len(young)), n, cost)
	if granted == 0 {
		return 0
	}
	hits := append([]int64(nil), young...)
	for i := int64(0); i < granted*cost; i++ {
		hits = append(hits, at)
	}
	r.hits = hits
	r.expires = at + window(l)
	return granted
}

// refundLog forgets the newest hits; of a claim, those of its time.
func refundLog(l *Limit, r *row, now, cost int64, c *claim) {
	end := len(r.hits)
	if c != nil {
		end = sort.Search(len(r.hits), func(i int) bool { return r.hits[i] > c.at })
	}
	begin := int(larger(0, int64(end)-cost))
	if c != nil {
		first := sort.Search(len(r.hits), func(i int) bool { return r.hits[i] >= c.at })
		begin = int(larger(int64(begin), int64(first)))
	}
	r.hits = append(append([]int64(nil), r.hits[:begin]...), r.hits[end:]...)
}

func lookLog(l *Limit, r *row, now int64) (free, reset int64) {
	young, at := live(l, r, now)
	used := len(young)
	if used == 0 {
		return l.Events, at
	}
	newest := young[used-1]
	return l.Events - int64(used), newest + window(l)
}

func retryLog(l *Limit, r *row, now, cost int64) int64 {
	young, _ := live(l, r, now)
	missing := cost - (l.Events - int64(len(young)))
	return young[missing-1] + window(l)
}

// claimNewest names the time of the hits.
func claimNewest(l *Limit, r *row, now int64) claim {
	if len(r.hits) == 0 {
		return claim{}
	}
	return claim{at: r.hits[len(r.hits)-1]}
}

// width_bucket searches a sorted array: how many elements are at most that.
var slidingLogSQL = stepSQL{
	columns: "hits",
	fresh:   "array_fill(clock.now, ARRAY[(i.granted * i.cost)::int]), clock.now + i.span * interval '1 microsecond'",
	step: `SELECT excluded.slot, granted,
		CASE WHEN granted > 0 THEN r.hits[gone + 1:] || array_fill(at, ARRAY[(granted * {cost})::int]) ELSE r.hits END,
		CASE WHEN granted > 0 THEN at + {span} * interval '1 microsecond' ELSE r.expires_at END
	FROM (SELECT *, greatest(0, least(excluded.granted, ({quota} - coalesce(cardinality(r.hits), 0) + gone) / {cost})) AS granted
	FROM (SELECT *, coalesce(width_bucket(at - {span} * interval '1 microsecond', r.hits), 0) AS gone
	FROM (SELECT greatest(excluded.hits[1], r.hits[cardinality(r.hits)]) AS at
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	refund: `hits = (SELECT r.hits[:first] || r.hits[last + 1:]
	FROM (SELECT last, greatest(last - least(i.cost, last)::int, CASE WHEN i.claimed IS NULL THEN 0
		ELSE width_bucket(i.claimed - interval '1 microsecond', r.hits) END) AS first
	FROM (SELECT CASE WHEN i.claimed IS NULL THEN cardinality(r.hits) ELSE width_bucket(i.claimed, r.hits) END AS last OFFSET 0) a OFFSET 0) b)
	WHERE cardinality(r.hits) > 0`,
	scanLong: func(hits []byte, r *row) { r.hits = timestamps(hits) },
}
