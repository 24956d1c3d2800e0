package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Leases returns the rows that the store remembers.
func (s *Store) Leases() *lease.Set { return s.rows }

// maintainLeases ends leases, and renews those with few units. It runs while there are leases.
func (s *Store) maintainLeases(report func(error)) {
	rows := s.rows
	closing := s.server.closing
	report(batch.PanicError(func() {
		for closing.Err() == nil {
			time.Sleep(lease.Interval(rows))
			for _, row := range lease.Sweep(rows) {
				s.renew(row)
			}
			if lease.Rest(rows) {
				return
			}
		}
	}))
}

// renew charges units for the lease of a row soon. A row that another transaction has locked gets none.
func (s *Store) renew(row *lease.Row) {
	if row == nil || lease.HasTimedOut(s.rows, row.ID) {
		return
	}
	if l, n := lease.Ask(s.rows, row); n > 0 {
		batch.Add(s.background, &batch.Call{Order: batch.After, Partial: true, Rows: []*lease.Row{row},
			Hits: []ratelimit.Hit{{Limit: l, Key: row.ID.Key, Cost: n}}}, 0)
	}
}

// refund refunds units of a lease soon. It is lease.Options.Refund.
func (s *Store) refund(r lease.Refund) {
	batch.Add(s.background, &batch.Call{Order: batch.Before, Claim: r.Claim, Window: r.Claim,
		Hits: []ratelimit.Hit{{Limit: r.Limit, Key: r.Row.Key, Cost: -r.N}}}, 0)
}

// chargeUnits charges units for the leases of the rows of a plan, as further hits of the entries that the
// plan has. The row grants the hits of requests first.
func (d *work) chargeUnits(p *plan) {
	if !p.remembered {
		return
	}
	for _, e := range p.entries[:p.usedEntries] {
		if e.row == nil || e.kind != take || p.latest[e.id] != e {
			continue
		}
		if _, n := lease.Ask(d.store.rows, e.row); n > 0 {
			e.last = (n + e.cost - 1) / e.cost
			e.n += e.last
		}
	}
}

// updateLeases updates the leases with the rows that a plan has charged.
func (d *work) updateLeases(p *plan) {
	for _, e := range p.entries[:p.usedEntries] {
		if e.row == nil || e.kind != take || e.view.Limit.Lease <= 0 || e.err != nil || !e.answered {
			continue
		}
		a := lease.Answer{View: &e.view, Sent: d.sent, Refused: e.granted < e.n-e.last, Asked: e.last > 0}
		if a.Units = e.granted - (e.n - e.last); a.Units > e.last {
			a.Units = e.last
		}
		if a.Units *= e.cost; a.Units < 0 {
			a.Units = 0
		}
		lease.Update(d.store.rows, e.row, &a)
	}
}

// addHeld adds the units of leases to the Remaining of the decisions of a call. sent is the time of lease.Now
// before the statements were sent: Remaining may have later units already.
func (d *work) addHeld(c *batch.Call, sent int64) {
	for i, row := range c.Rows {
		if row == nil || c.Hits[i].Limit.Lease <= 0 {
			continue
		}
		if held := lease.HeldSince(d.store.rows, row, sent); held > 0 {
			at := &c.Decisions[i]
			at.Remaining = algorithm.Remaining(at.Limit, at.Remaining+held)
		}
	}
}

// dropRefused refunds the units of the rows that refused a request of several limits: the request may pass
// then.
func (d *work) dropRefused(r *request) {
	for i := range r.refusals {
		if r.refusals[i].view.Limit.Lease > 0 {
			lease.GiveUp(d.store.rows, r.refusals[i].id)
		}
	}
}
