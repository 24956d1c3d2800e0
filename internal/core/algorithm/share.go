package algorithm

import (
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A process that cannot reach the database counts alone, at its share of each limit: one of parts. All
// shares together are the limit, and at most one more for each process, because a share is rounded up.

// ShareLimit returns a limit with one of parts of its quota.
func ShareLimit(l *ratelimit.Limit, parts float64) ratelimit.Limit {
	shared := *l
	shared.Events = shareOf(l.Events, parts)
	if l.Burst > 0 {
		shared.Burst = shareOf(l.Burst, parts)
	}
	return shared
}

// ShareRow makes a row the share that one of parts has of it: what was used, and what is left. Times stay,
// so windows end and tokens come when they would have, since all is in proportion to the limit.
func ShareRow(r *Row, parts float64) {
	r.Count = shareOf(r.Count, parts)
	r.PrevCount = shareOf(r.PrevCount, parts)
	r.Tokens = math.Floor(r.Tokens/parts + rounding)
	r.Remainder = 0 // below a microsecond, or below a token
	n := int64(len(r.Hits))
	most := shareOf(n, parts)
	hits := make([]int64, 0, most)
	for i := int64(1); i <= most; i++ {
		hits = append(hits, r.Hits[n*i/most-1])
	}
	r.Hits = hits
}

// rounding is less than any part of a quota, and more than the error of a division.
const rounding = 1e-9

// shareOf is one of parts of n, rounded up.
func shareOf(n int64, parts float64) int64 {
	if n <= 0 || parts <= 1 {
		return n
	}
	return larger(1, int64(math.Ceil(float64(n)/parts-rounding)))
}
