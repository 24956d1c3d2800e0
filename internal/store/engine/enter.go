package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// enter gives the takes of a plan on limits InFlight their slots, which are p.entered then. If the process has no name
// for them, the groups of these takes fail, with the error that enter returns.
func (d *dispatch) enter(p *plan) error {
	p.entered = p.entered[:0]
	var failure error
	for _, g := range p.groups[:p.usedGroups] {
		if g.kind != take || !hasSlots(g.definition) {
			continue
		}
		p.inFlight = true
		session, err := d.engine.flight.begin(d.ctx, batch.Timeout(d.queue))
		if err != nil {
			g.failure = d.noDecision(err)
			failure = g.failure
			continue
		}
		for _, e := range g.entries {
			n := e.n * e.cost
			if most := e.view.Limit.Capacity(); n > most {
				n = most
			}
			if e.first == 0 { // else its statement had no effect before
				e.first = d.engine.flight.numbers(session, n)
			}
			p.entered = append(p.entered, slots{row: e.id, first: e.first, n: n})
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// hasSlots reports whether the definition is that of limits InFlight.
func hasSlots(d *algorithm.Definition) bool { return d == inFlight }

// hold gives the hits of requests their slots.
func (d *dispatch) hold(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			at := &r.positions[i]
			if e := at.entry; e != nil && e.first != 0 && at.nth < e.granted {
				d.engine.flight.hold(slots{row: e.id, first: e.first + at.nth*e.cost, n: e.cost}, &r.call.Hits[i])
			}
		}
	}
}
