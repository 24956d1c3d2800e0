package engine

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// addLeaseCharges adds charges for leases to the entries of a plan, as additional hits of their entries. A
// row grants the hits of requests first.
func (w *work) addLeaseCharges(p *plan) {
	for _, e := range p.entries {
		if e.row == nil || e.kind != statement.Charge || p.latest[e.id] != e {
			continue
		}
		if _, n := lease.NextCharge(w.engine.rows, e.row); n > 0 {
			e.leaseHits = (n + e.cost - 1) / e.cost
			e.n += e.leaseHits
		}
	}
}

// updateLeases passes the results of charges to the leases of their rows. The first result starts
// maintainLeases.
func (w *work) updateLeases(p *plan) {
	engine := w.engine
	for _, e := range p.entries {
		if e.row == nil || e.kind != statement.Charge || e.view.Limit.Lease <= 0 || e.err != nil ||
			!e.answered {
			continue
		}
		if atomic.LoadInt32(&engine.maintained) == 0 {
			engine.startMaintenance()
		}
		answer := lease.Answer{View: &e.view, Sent: w.sent, Requested: e.leaseHits > 0,
			Units: (e.granted - (e.n - e.leaseHits)) * e.cost}
		if answer.Units < 0 {
			answer.Units = 0
			answer.Refused = true
		}
		lease.Update(engine.rows, e.row, &answer)
	}
}

// addLeasedUnits adds the units of leases to Remaining in the decisions of a call. The units that a round
// charges for a lease are the last granted units of their entry, so Remaining already includes them. To count
// them once, a round of single hits calls addLeasedUnits before updateLeases. A transaction charges no units
// for leases.
func (w *work) addLeasedUnits(c *batch.Call) {
	for i, row := range c.Rows {
		if row == nil || c.Hits[i].Limit.Lease <= 0 {
			continue
		}
		if units := lease.Units(w.engine.rows, row); units > 0 {
			d := &c.Decisions[i]
			d.Remaining = algorithm.Remaining(d.Quota, d.Remaining+units)
		}
	}
}

// startMaintenance starts maintainLeases, unless it was started before.
func (e *Engine) startMaintenance() {
	if atomic.CompareAndSwapInt32(&e.maintained, 0, 1) {
		go e.maintainLeases()
	}
}

// maintainLeases ends and charges leases until the engine is closed.
func (e *Engine) maintainLeases() {
	closing := e.closing
	e.report(batch.PanicError(func() {
		for closing.Err() == nil {
			health.Sleep(closing, lease.SweepInterval(e.rows))
			for _, row := range lease.Sweep(e.rows) {
				e.chargeLease(row)
			}
			e.refundLeases()
		}
	}))
}

// chargeLease charges the units of NextCharge for a row's lease in the background, unless the row had a
// recent lock timeout. row may be nil.
func (e *Engine) chargeLease(row *lease.Cached) {
	if row == nil || lease.HadLockTimeout(e.rows, row.ID) {
		return
	}
	if l, n := lease.NextCharge(e.rows, row); n > 0 {
		e.addJob(&batch.Job{Hit: ratelimit.Hit{Limit: l, Key: row.ID.Key, Cost: n}, Row: row,
			After: true, Partial: true}, 0)
	}
}

// refundLeases refunds units of leases in the background. It holds the mutex of checkIdentity, which could
// otherwise miss a refund that is no longer in the Set and not yet in the backlog.
func (e *Engine) refundLeases() {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	for _, r := range lease.Refunds(e.rows) {
		e.addJob(&batch.Job{Hit: ratelimit.Hit{Limit: r.Limit, Key: r.Row.Key, Cost: -r.Units},
			Claim: r.Claim, Window: r.Claim}, 0)
	}
}
