package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
)

// Leases implements chain.Store.
func (s *Store) Leases() *lease.Set { return s.engine.rows }

// maintainLeases ends leases, and sends the refunds that no other batch takes. It runs while there are leases.
func (s *Store) maintainLeases(report func(error)) {
	rows := s.engine.rows
	closing := s.engine.server.closing
	report(batch.PanicError(func() {
		for closing.Err() == nil {
			time.Sleep(lease.Interval(rows))
			if !lease.Sweep(rows) && lease.Rest(rows) {
				return
			}
			if lease.Due(rows) && s.Unavailable() == nil {
				batch.Enter(s.leasing, batch.NewCall())
			}
		}
	}))
}

// closeLeases ends the leases, and tries to refund their units for a time.
func (s *Store) closeLeases(most time.Duration) {
	rows := s.engine.rows
	lease.End(rows)
	for until := time.Now().Add(most); lease.Due(rows) && time.Now().Before(until) && s.Unavailable() == nil; {
		batch.Enter(s.leasing, batch.NewCall())
	}
}

// addRefunds adds the refunds of units that go with the batch, and returns the rows whose leases it renews. The units
// of rows that another transaction has locked are lost, so that no request waits for them.
func (d *dispatch) addRefunds() []*lease.Row {
	rows := d.engine.rows
	given := false
	for _, r := range d.gathered {
		hits := r.call.Hits
		for i := range hits {
			if hits[i].Cost < 0 || r.call.Reset {
				given = true
				lease.Drop(rows, rowOf(&hits[i]))
			}
		}
	}
	refunds, renewed := lease.Work(rows, given)
	for _, refund := range refunds {
		if !d.Locked(refund.Row) {
			d.own = append(d.own, &ownCall{Call: &own.Call{Kind: refundUnits, Row: refund.Row, Limit: refund.Limit,
				N: refund.N, Claim: refund.Claim}})
		}
	}
	return renewed
}

// refundUnits is the kind of calls that refund units of leases. They are not sent again.
var refundUnits = &own.Kind{Statement: own.Adjust}

// chargeUnits charges units for the leases of the rows of a plan, as further hits of the items that the plan has. The
// row grants the hits of requests first.
func (d *dispatch) chargeUnits(p *plan) {
	if !p.remembered {
		return
	}
	for _, e := range p.entries[:p.usedEntries] {
		if e.row == nil || e.kind != take || p.latest[e.id] != e {
			continue
		}
		if _, n := lease.Ask(d.engine.rows, e.row); n > 0 {
			e.last = (n + e.cost - 1) / e.cost
			e.n += e.last
		}
	}
}

// chargeUnitsApart charges units for the leases of rows, as items of a plan that comes after the requests.
func (d *dispatch) chargeUnitsApart(p *plan, rows []*lease.Row) {
	for _, row := range rows {
		if row == nil || d.Locked(row.ID) {
			continue
		}
		if l, n := lease.Ask(d.engine.rows, row); n > 0 {
			e := add(p, take, l, row.ID, 1).entry
			e.n += n - 1
			e.last = n
			e.row = row
			p.remembered = true
		}
	}
}

// updateLeases updates the leases with the rows that a plan has charged.
func (d *dispatch) updateLeases(p *plan) {
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
		lease.Update(d.engine.rows, e.row, &a)
	}
}

// addHeld adds the units of leases to the Remaining of the decisions of a call. sent is the time of lease.Now before
// the statements were sent: Remaining may have later units already.
func (d *dispatch) addHeld(c *batch.Call, sent int64) {
	for i, row := range c.Rows {
		if row == nil || c.Hits[i].Limit.Lease <= 0 {
			continue
		}
		if held := lease.HeldSince(d.engine.rows, row, sent); held > 0 {
			at := &c.Decisions[i]
			at.Remaining = algorithm.Remaining(at.Limit, at.Remaining+held)
		}
	}
}

// dropRefused refunds the units of the rows that refused a request of several limits: the request may pass then.
func (d *dispatch) dropRefused(r *request) {
	for i := range r.refusals {
		if r.refusals[i].view.Limit.Lease > 0 {
			lease.GiveUp(d.engine.rows, r.refusals[i].id)
		}
	}
}
