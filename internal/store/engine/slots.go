package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// enter gives the takes of a plan on limits InFlight (see plan.inFlight) their slots, which are p.entered
// then. If the process has no name for them, the groups of these takes fail, with the error that enter
// returns.
func (d *work) enter(p *plan) error {
	p.entered = p.entered[:0]
	var failure error
	for _, g := range p.groups[:p.usedGroups] {
		if !g.slots {
			continue
		}
		session, err := d.store.slots.Begin(d.ctx, d.queue.Timeout)
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
			e.first = d.store.slots.Numbers(session, n)
			p.entered = append(p.entered, slots.Range{Limit: e.view.Limit, Row: e.id, First: e.first, N: n})
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// hold gives the hits of requests their slots.
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

// rangeOf is the slots of a hit.
func rangeOf(at *position) slots.Range {
	return slots.Range{Limit: at.entry.view.Limit, Row: at.entry.id,
		First: at.entry.first + at.nth*at.entry.cost,
		N:     at.entry.cost}
}

// leaveEntered gives back the slots that a request may have, and of which its caller does not learn.
func (d *work) leaveEntered(r *request) {
	var entered []slots.Range
	for i := range r.positions {
		at := &r.positions[i]
		if at.entry != nil && at.entry.kind == take && at.entry.first != 0 {
			entered = append(entered, rangeOf(at))
		}
	}
	d.store.slots.LeaveUnsure(entered)
}
