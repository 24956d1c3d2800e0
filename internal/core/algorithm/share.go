package algorithm

import (
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// During an outage each process counts alone, with its share of each limit. The shares add up to the limit,
// plus at most one for each process, because shares are rounded up.

// ShareLimit returns l with its quota divided by parts. parts is at least 1.
func ShareLimit(l *ratelimit.Limit, parts float64) ratelimit.Limit {
	share := *l
	share.Events = shareOf(l.Events, parts)
	if l.Burst > 0 {
		share.Burst = shareOf(l.Burst, parts)
	}
	return share
}

// ShareRow divides a row by parts: both the used and the remaining quota. It does not change times, so
// windows end and buckets refill at the same times as in the whole row.
func ShareRow(r *Row, parts float64) {
	r.Count = shareOf(r.Count, parts)
	r.PrevCount = shareOf(r.PrevCount, parts)
	r.Held = shareOf(r.Held, parts)
	r.Tokens = math.Floor(r.Tokens/parts + rounding)
	r.Remainder = 0 // less than a microsecond, or than a token
	n := int64(len(r.Hits))
	kept := shareOf(n, parts)
	hits := make([]int64, 0, kept)
	for i := int64(1); i <= kept; i++ {
		hits = append(hits, r.Hits[n*i/kept-1])
	}
	r.Hits = hits
}

// rounding exceeds the error of a division, and is smaller than any fraction of a quota.
const rounding = 1e-9

// shareOf returns n divided by parts, rounded up.
func shareOf(n int64, parts float64) int64 {
	if n <= 0 || parts <= 1 {
		return n
	}
	return larger(1, int64(math.Ceil(float64(n)/parts-rounding)))
}
