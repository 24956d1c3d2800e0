package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Leases returns the rows that the store remembers.
func (s *Store) Leases() *lease.Set { return s.rows }

// maintainLeases ends and renews leases until the store is closed.
func (s *Store) maintainLeases(report func(error)) {
	closing := s.server.closing
	report(batch.PanicError(func() {
		for closing.Err() == nil {
			health.Sleep(closing, lease.SweepInterval(s.rows))
			for _, row := range lease.Sweep(s.rows) {
				s.renew(row)
			}
		}
	}))
}

// renew charges units for a row's lease in the background, unless the row had a recent lock timeout. row may
// be nil.
func (s *Store) renew(row *lease.Row) {
	if row == nil || lease.HadLockTimeout(s.rows, row.ID) {
		return
	}
	if l, n := lease.NextCharge(s.rows, row); n > 0 {
		batch.Add(s.background, &batch.Call{Order: batch.After, Partial: true, Rows: []*lease.Row{row},
			Hits: []ratelimit.Hit{{Limit: l, Key: row.ID.Key, Cost: n}}}, 0)
	}
}

// refund refunds units of a lease in the background. It implements lease.Options.Refund.
func (s *Store) refund(r lease.Refund) {
	batch.Add(s.background, &batch.Call{Order: batch.Before, Claim: r.Claim, Window: r.Claim,
		Hits: []ratelimit.Hit{{Limit: r.Limit, Key: r.Row.Key, Cost: -r.N}}}, 0)
}

// chargeUnits adds charges for leases to the takes of a plan, as additional hits of their entries. A row
// grants the hits of requests first.
func (w *work) chargeUnits(p *plan) {
	if !p.remembered {
		return
	}
	for _, e := range p.entries {
		if e.row == nil || e.kind != take || p.latest[e.id] != e {
			continue
		}
		if _, n := lease.NextCharge(w.store.rows, e.row); n > 0 {
			e.leaseUnits = (n + e.cost - 1) / e.cost
			e.n += e.leaseUnits
		}
	}
}

// updateLeases passes the results of takes to the leases of their rows.
func (w *work) updateLeases(p *plan) {
	for _, e := range p.entries {
		if e.row == nil || e.kind != take || e.view.Limit.Lease <= 0 || e.err != nil || !e.answered {
			continue
		}
		answer := lease.Answer{View: &e.view, Sent: w.sent, Refused: e.granted < e.n-e.leaseUnits,
			Requested: e.leaseUnits > 0}
		if answer.Units = e.granted - (e.n - e.leaseUnits); answer.Units > e.leaseUnits {
			answer.Units = e.leaseUnits
		}
		if answer.Units *= e.cost; answer.Units < 0 {
			answer.Units = 0
		}
		lease.Update(w.store.rows, e.row, &answer)
	}
}

// addLeasedUnits adds the units of leases to Remaining in the decisions of a call. It runs before
// updateLeases adds the units that the same pipeline charges, because Remaining includes them.
func (w *work) addLeasedUnits(c *batch.Call) {
	for i, row := range c.Rows {
		if row == nil || c.Hits[i].Limit.Lease <= 0 {
			continue
		}
		if held := lease.Units(w.store.rows, row); held > 0 {
			d := &c.Decisions[i]
			d.Remaining = algorithm.Remaining(d.Limit, d.Remaining+held)
		}
	}
}

// refundRefused refunds the leased units of the rows that refused a request of several hits, so that a retry
// may pass.
func (w *work) refundRefused(r *request) {
	for i := range r.refusals {
		if r.refusals[i].view.Limit.Lease > 0 {
			lease.RefundUnits(w.store.rows, r.refusals[i].id)
		}
	}
}
