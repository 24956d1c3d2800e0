package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simulate decides the requests in memory, one after the other, and reports whether any of them charges or
// refunds.
func simulate(requests []*request, rows map[lease.RowID]*algorithm.View) bool {
	charges := false
	var hitRows []*algorithm.Row
	var times []int64
	for _, r := range requests {
		hits := r.call.Hits
		hitRows = hitRows[:0]
		times = times[:0]
		for i := range hits {
			s := rows[rowOf(&hits[i])]
			hitRows = append(hitRows, &s.Row)
			times = append(times, s.Now)
		}
		decisions := make([]ratelimit.Decision, len(hits))
		r.passes = algorithm.Decide(hits, hitRows, times, decisions)
		r.call.Decisions = decisions
		r.refusals = nil
		for i := range hits {
			if !decisions[i].Allowed && !hits[i].Peek {
				view := algorithm.View{Limit: hits[i].Limit, Row: *hitRows[i], Now: times[i]}
				r.refusals = append(r.refusals, refusal{rowOf(&hits[i]), view, i})
			}
			charges = charges || hits[i].Cost < 0 || r.passes && !hits[i].Peek
		}
	}
	return charges
}
