package engine

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// allocateSlots sets the slot numbers of a plan's charges on limits InFlight, and the names of those on
// limits that reserve (see plan.holds). If no name can be taken, it fails the groups of these charges
// and returns the error.
func (w *work) allocateSlots(p *plan) error {
	var failure error
	for _, g := range p.groups {
		var name int64
		var err error
		switch {
		case g.takesSlots:
			name, err = w.engine.slots.Name.Get(w.ctx, w.queue.Timeout)
		case g.reserves:
			name, err = w.engine.ledger.UseName(w.ctx, w.queue.Timeout)
			if err == nil {
				w.names = append(w.names, name)
			}
		default:
			continue
		}
		if err != nil {
			g.failure = w.noDecision(err)
			failure = g.failure
			continue
		}
		for _, e := range g.entries {
			if g.reserves {
				e.first = name
				continue
			}
			n := e.n * e.cost
			if capacity := e.view.Limit.Capacity(); n > capacity {
				n = capacity
			}
			e.first = w.engine.slots.Allocate(name, n)
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// acquireSlots transfers the slots and units of granted hits to the Holds of their callers.
func (w *work) acquireSlots(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			pos := &r.positions[i]
			e := pos.entry
			switch {
			case e == nil || e.first == 0 || pos.nth >= e.granted:
			case e.sums != nil:
				w.engine.ledger.Acquire(e.first, &r.Hits[i], e.id)
			default:
				w.engine.slots.Acquire(rangeOf(pos), &r.Hits[i])
			}
		}
	}
}

// rangeOf returns the allocated slots of a hit.
func rangeOf(pos *position) slots.Range {
	row := pos.entry.id
	row.Key = strings.Clone(row.Key) // it may be a part of a long request
	return slots.Range{Limit: pos.entry.view.Limit, Row: row,
		First: pos.entry.first + pos.nth*pos.entry.cost,
		N:     pos.entry.cost}
}

// releaseUncertain releases the slots that a request without a decision may have taken. It leaves out the
// hits of an entry beyond the capacity of the limit, because the row cannot have granted them.
func (w *work) releaseUncertain(r *request) {
	var allocated []slots.Range
	for i := range r.positions {
		pos := &r.positions[i]
		e := pos.entry
		if e != nil && e.sums != nil {
			w.engine.ledger.MarkUncertain()
		} else if e != nil && e.kind == statement.Charge && e.first != 0 &&
			pos.nth < e.view.Limit.Capacity()/e.cost {
			allocated = append(allocated, rangeOf(pos))
		}
	}
	w.engine.slots.ReleaseUncertain(allocated)
}

// repeatReleases plans the unanswered releases of the rows on which requests take slots.
func (w *work) repeatReleases(p *plan, requests []*request) {
	if !w.engine.slots.IsReleasing() {
		return
	}
	repeated := map[lease.RowID]bool{}
	for _, r := range requests {
		for i := range r.Hits {
			row := rowOf(&r.Hits[i])
			if repeated[row] {
				continue
			}
			repeated[row] = true
			for _, released := range w.engine.slots.Releasing(row) {
				addRelease(p, released, p.oneByOne)
			}
		}
	}
}

// addRelease plans the release of slots. A row can have several releases in a statement.
func addRelease(p *plan, r slots.Range, isolated bool) *entry {
	e := &entry{kind: statement.Release, id: r.Row, n: r.N, first: r.First}
	g := groupFor(p, 0, statement.Key{Kind: statement.Release, Definition: inFlight,
		Durable: r.Limit.Durable, Sync: r.Limit.AwaitsDisk()}, isolated)
	g.entries = append(g.entries, e)
	return e
}
