package postgres

import "github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"

// enter gives the takes of a plan on limits InFlight their slots. If the process has no name for them, the
// groups of these takes fail, with the error that enter returns.
func (d *dispatch) enter(p *plan) error {
	var failure error
	for _, g := range p.groups[:p.usedGroups] {
		if g.kind != take || !hasSlots(g.definition) {
			continue
		}
		p.inFlight = true
		session, err := d.engine.flight.begin(d.ctx)
		if err != nil {
			g.failure = err
			failure = err
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
			d.entered = append(d.entered, slots{row: e.id, first: e.first, n: n})
		}
	}
	return failure
}

// hasSlots reports whether the definition is that of limits InFlight.
func hasSlots(d *algorithm.Definition) bool { return d.Name == "in_flight" }

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
