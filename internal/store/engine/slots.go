package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// allocateSlots sets the slot numbers of a plan's takes on limits InFlight (see plan.inFlight). If no session
// can be started, it fails the groups of these takes and returns the error.
func (w *work) allocateSlots(p *plan) error {
	var failure error
	for _, g := range p.groups {
		if !g.slots {
			continue
		}
		session, err := w.store.slots.Session(w.ctx, w.queue.Timeout)
		if err != nil {
			g.failure = w.noDecision(err)
			failure = g.failure
			continue
		}
		for _, e := range g.entries {
			n := e.n * e.cost
			if capacity := e.view.Limit.Capacity(); n > capacity {
				n = capacity
			}
			e.firstSlot = w.store.slots.Allocate(session, n)
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// holdSlots transfers the slots of granted hits to the Slots of their callers.
func (w *work) holdSlots(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			pos := &r.positions[i]
			if e := pos.entry; e != nil && e.firstSlot != 0 && pos.nth < e.granted {
				w.store.slots.Hold(rangeOf(pos), &r.call.Hits[i])
			}
		}
	}
}

// rangeOf returns the allocated slots of a hit.
func rangeOf(pos *position) slotRange {
	return slotRange{Limit: pos.entry.view.Limit, Row: pos.entry.id,
		First: pos.entry.firstSlot + pos.nth*pos.entry.cost,
		N:     pos.entry.cost}
}

// releaseUncertain releases the slots that a request without a decision may have taken. A row never grants
// more hits than its capacity allows, and so the later ones have no slots.
func (w *work) releaseUncertain(r *request) {
	var allocated []slotRange
	for i := range r.positions {
		pos := &r.positions[i]
		e := pos.entry
		if e != nil && e.kind == take && e.firstSlot != 0 && pos.nth < e.view.Limit.Capacity()/e.cost {
			allocated = append(allocated, rangeOf(pos))
		}
	}
	w.store.slots.ReleaseUncertain(allocated)
}
