package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// enter numbers the slots of the takes of a plan on limits InFlight (see plan.inFlight), and sets p.entered
// to them. Without a session, the groups of these takes fail, with the error that enter returns.
func (d *work) enter(p *plan) error {
	p.entered = p.entered[:0]
	var failure error
	for _, g := range p.groups[:p.usedGroups] {
		if !g.slots {
			continue
		}
		session, err := d.store.slots.Session(d.ctx, d.queue.Timeout)
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
			e.first = d.store.slots.Allocate(session, n)
			p.entered = append(p.entered, slots.Range{Limit: e.view.Limit, Row: e.id, First: e.first, N: n})
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// hold transfers the slots of granted hits to the slots of their callers.
func (d *work) hold(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			at := &r.positions[i]
			if e := at.entry; e != nil && e.first != 0 && at.nth < e.granted {
				d.store.slots.Hold(rangeOf(at), &r.call.Hits[i])
			}
		}
	}
}

// rangeOf returns the slots of a hit.
func rangeOf(at *position) slots.Range {
	return slots.Range{Limit: at.entry.view.Limit, Row: at.entry.id,
		First: at.entry.first + at.nth*at.entry.cost,
		N:     at.entry.cost}
}

// leaveEntered releases the slots that a request may have although it gets no decision.
func (d *work) leaveEntered(r *request) {
	var entered []slots.Range
	for i := range r.positions {
		at := &r.positions[i]
		if at.entry != nil && at.entry.kind == take && at.entry.first != 0 {
			entered = append(entered, rangeOf(at))
		}
	}
	d.store.slots.ReleaseUncertain(entered)
}
