package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// A call is all that travels in a batch. Callers wait for most calls: a take of one hit, a take of several hits
// together, a look, a refund, a reset (batch.Call). The others are calls of the store itself, for which nobody waits:
// leases, settlements and slots have them go with the next batch, or with one of their own if no batch comes. A kind of
// such calls is one entry of this table:
//
//	kind        what it does to its row                 planned by     ends in
//	leaveSlots  gives slots back                        planLeave      flight.left
//	settleCost  charges or gives back, with a claim     planSettle     endSettlement
//	returnUnits gives leased units back, with a claim   planReturn     dispatch.returned
//	chargeUnits charges what there is for a lease       planCharge     updateLeases, dispatch.charged
//
// Slots go before all else in the pipeline. Settlements and returned units are the first stage of the plan of the
// callers' requests, so that the rows have them for the requests. Charges come last: a row grants the requests first.
type ownKind uint8

const (
	leaveSlots ownKind = iota
	settleCost
	returnUnits
	chargeUnits
)

// ownCall is a call of the store itself. The batch that has taken it ends it once.
type ownCall struct {
	kind  ownKind
	entry *entry // set by plan
	ended bool
	// since is when the call failed first, or waited for a locked row first: then it has a statement of its
	// own. It is zero if neither has happened.
	since time.Time

	// What the call is about, by its kind.
	slots      slots
	window     settledWindow
	settlement *settlement
	units      *lease.Return
	charge     *lease.Ask
}

// ownCalls returns the calls of the store that go with the requests of a batch.
func (d *dispatch) ownCalls(requests []*request) []*ownCall {
	return d.leaseCalls(requests, d.engine.post.calls(d, requests))
}

// again is the same call for another batch, after one in which it has failed.
func (c *ownCall) again() *ownCall {
	again := &ownCall{kind: c.kind, since: c.since, slots: c.slots, window: c.window, settlement: c.settlement}
	if again.since.IsZero() {
		again.since = time.Now()
	}
	return again
}

// plan adds the entry of the call to a plan.
func (c *ownCall) plan(p *plan) {
	switch c.kind {
	case leaveSlots:
		c.entry = planLeave(p, &c.slots, !c.since.IsZero())
	case settleCost:
		c.entry = planSettle(p, c.settlement, !c.since.IsZero())
	case returnUnits:
		c.entry = planReturn(p, c.units)
	case chargeUnits:
		c.entry = planCharge(p, c.charge)
	}
}

// endOwn ends calls whose entries have their results. err is why the pipeline has no results, or nil.
func (d *dispatch) endOwn(calls []*ownCall, err error) {
	ends := settlementEnds{}
	for _, c := range calls {
		if c.ended {
			continue
		}
		c.ended = true
		failure := err
		if failure == nil && c.entry != nil {
			failure = c.entry.err
		}
		switch c.kind {
		case leaveSlots:
			d.engine.flight.left(c, failure, err == nil)
		case settleCost:
			d.endSettlement(c, failure, &ends)
		case returnUnits:
			d.returned(c.units)
		case chargeUnits:
			d.charged(c)
		}
	}
	d.countSettlements(&ends)
}
