package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// snapshot is the state of a row at a time.
type snapshot struct {
	row algorithm.Row
	now int64
}

// peekedRows returns the rows that the peeks of a plan have read.
func peekedRows(p *plan) map[lease.RowID]*snapshot {
	rows := map[lease.RowID]*snapshot{}
	for _, e := range p.entries[:p.usedEntries] {
		rows[e.id] = &snapshot{row: e.view.Row, now: e.view.Now}
	}
	return rows
}

// rowsBefore returns the rows as they were before the takes of a plan that was rolled back: an adjustment at
// the same time undoes a take. It returns nil if the plan does not show all rows of the requests: a refund
// cannot be undone in memory, and neither can a take by a limit with a shorter window or a smaller bucket
// than another limit on the row. Requests that the simulation refused and peeks are not in the plan.
func rowsBefore(p *plan, requests []*request) map[lease.RowID]*snapshot {
	rows := map[lease.RowID]*snapshot{}
	for i := p.usedEntries - 1; i >= 0; i-- {
		e := p.entries[i]
		if e.kind != take {
			return nil
		}
		l := e.view.Limit
		s := rows[e.id]
		if s == nil {
			s = &snapshot{row: e.view.Row, now: e.view.Now}
			rows[e.id] = s
		}
		if e.granted > 0 {
			algorithm.Of(l).Adjust(l, &s.row, s.now, e.granted*e.cost, 0)
		}
	}
	limits := map[lease.RowID]*ratelimit.Limit{}
	for _, r := range requests {
		for i := range r.call.Hits {
			h := &r.call.Hits[i]
			id := rowOf(h)
			if limits[id] == nil {
				limits[id] = h.Limit
			}
			if rows[id] == nil || !h.Limit.Equal(limits[id]) {
				return nil
			}
		}
	}
	return rows
}

// simulate decides the requests in memory, one after the other, and reports whether one of them charges or
// refunds anything.
func simulate(requests []*request, rows map[lease.RowID]*snapshot) bool {
	charges := false
	var at []*algorithm.Row
	var nows []int64
	for _, r := range requests {
		hits := r.call.Hits
		at = at[:0]
		nows = nows[:0]
		for i := range hits {
			s := rows[rowOf(&hits[i])]
			at = append(at, &s.row)
			nows = append(nows, s.now)
		}
		r.decisions = append(r.decisions[:0], make([]ratelimit.Decision, len(hits))...)
		r.passes = algorithm.Decide(hits, at, nows, r.decisions)
		r.refusals = r.refusals[:0]
		for i := range hits {
			if !r.decisions[i].Allowed && !hits[i].Peek {
				view := algorithm.View{Limit: hits[i].Limit, Row: *at[i], Now: nows[i]}
				r.refusals = append(r.refusals, refusal{rowOf(&hits[i]), view, i})
			}
			charges = charges || hits[i].Cost < 0 || r.passes && !hits[i].Peek
		}
	}
	return charges
}
