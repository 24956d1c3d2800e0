package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// allocateSlots sets the slot numbers of a plan's takes on limits InFlight (see plan.inFlight), and
// p.allocated. If no session can be started, it fails the groups of these takes and returns the error.
func (d *work) allocateSlots(p *plan) error {
	p.allocated = p.allocated[:0]
	var failure error
	for _, g := range p.groups {
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
			if capacity := e.view.Limit.Capacity(); n > capacity {
				n = capacity
			}
			e.firstSlot = d.store.slots.Allocate(session, n)
			p.allocated = append(p.allocated,
				slotRange{Limit: e.view.Limit, Row: e.id, First: e.firstSlot, N: n})
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// holdSlots transfers the slots of granted hits to the Slots of their callers.
func (d *work) holdSlots(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			at := &r.positions[i]
			if e := at.entry; e != nil && e.firstSlot != 0 && at.nth < e.granted {
				d.store.slots.Hold(rangeOf(at), &r.call.Hits[i])
			}
		}
	}
}

// rangeOf returns the allocated slots of a hit.
func rangeOf(at *position) slotRange {
	return slotRange{Limit: at.entry.view.Limit, Row: at.entry.id,
		First: at.entry.firstSlot + at.nth*at.entry.cost,
		N:     at.entry.cost}
}

// releaseUncertain releases the slots that a request without a decision may have taken.
func (d *work) releaseUncertain(r *request) {
	var allocated []slotRange
	for i := range r.positions {
		at := &r.positions[i]
		if at.entry != nil && at.entry.kind == take && at.entry.firstSlot != 0 {
			allocated = append(allocated, rangeOf(at))
		}
	}
	d.store.slots.ReleaseUncertain(allocated)
}
