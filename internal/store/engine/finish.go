package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// finish finishes requests, with their decisions if err is nil, unless they are finished already. A
// remembered refusal replaces err.
func (w *work) finish(requests []*request, err error) {
	calls := make([]*batch.Call, 0, len(requests))
	for _, r := range requests {
		if !r.finished {
			r.finished = true
			calls = append(calls, r.Call)
		}
	}
	if err != nil {
		w.failCalls(calls, err)
		return
	}
	batch.Finish(w.queue, calls, nil)
}

// clearRefunded clears the remembered refusals of the rows that requests refund or reset, whether or not the
// refund has taken effect. It also ends their leases, because another batch may have charged units for a
// lease since this batch ended the leases.
func (w *work) clearRefunded(all ...*request) {
	for _, r := range all {
		for i := range r.Hits {
			if r.Reset || r.Hits[i].Cost < 0 {
				lease.ClearRefusals(w.engine.rows, rowOf(&r.Hits[i]))
				lease.EndLease(w.engine.rows, rowOf(&r.Hits[i]))
			}
		}
	}
}

// noDecision returns the error for the calls of a batch that failed with err.
func (w *work) noDecision(err error) error {
	return w.engine.health.NoDecision(err, w.extended && w.ctx.Err() != nil)
}

// failCalls finishes calls that the database did not decide, with a remembered refusal or err.
func (d *decider) failCalls(calls []*batch.Call, err error) {
	for _, c := range calls { // a row may have been remembered after its call arrived
		c.Decisions = c.Decisions[:0]
		c.Rows = lease.Find(d.engine.rows, c.Hits, c.Rows[:0])
	}
	if d.engine.refuseRemembered(calls, err) > 0 {
		calls = d.finishFromMemory(calls)
	}
	batch.Finish(d.queue, calls, err)
}

// finishFromMemory finishes the calls that memory has decided, or failed, and returns the other calls.
func (d *decider) finishFromMemory(calls []*batch.Call) []*batch.Call {
	var decided []*batch.Call
	n := 0
	for _, c := range calls {
		if len(c.Decisions) > 0 || c.Err != nil {
			decided = append(decided, c)
			continue
		}
		calls[n] = c
		n++
	}
	batch.Finish(d.queue, decided, nil)
	return calls[:n]
}
