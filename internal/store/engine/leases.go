package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/known"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Limits with a Lease are decided in memory as long as there are units, see package lease. The
// units travel with the batches of other requests:
//
//   - What is to be given back is the first stage of a plan, so that it is there for the
//     requests of the batch.
//   - What is to be charged comes after all requests: as further hits of the entry of the
//     requests on the row, or as an entry of its own. The row grants partially, the requests
//     first. Transactions of several limits carry no such hits, because a transaction fails
//     if a row grants less than was asked for.
//
// No request waits for a lease. If no batch comes, the store sends one without requests.

// Leases returns the leases of the store; nil if it has none.
func (s *Store) Leases() *lease.Set { return s.engine.leases }

// newLeases returns the leases of a store, or nil if it has none.
func newLeases(s *Store, o Options) *lease.Set {
	if o.MaxLeases < 0 {
		return nil
	}
	return lease.New(lease.Options{Max: o.MaxLeases, Horizon: o.LeaseHorizon, Maintain: func() { maintainLeases(s) }})
}

// leaseTimeout is for a batch without requests.
const leaseTimeout = time.Second

// maintainLeases sends what no other batch takes, and ends leases. It runs while there are leases.
func maintainLeases(s *Store) {
	call := batch.NewCall()
	err := batch.PanicError(func() {
		lease.Maintain(s.engine.leases, func() bool { return s.engine.server.closing.Err() == nil }, func() { sendLeases(s, call) })
	})
	s.engine.cleaner.report(err)
}

// sendLeases decides a batch without requests, unless the database does not answer.
func sendLeases(s *Store, call *batch.Call) {
	if s.unavailable() == nil {
		call.Prepare(nil, false)
		batch.Enter(s.leasing, call)
	}
}

// leaseCalls adds the calls that give leased units back, and those that charge units. It skips a row that another
// transaction has locked, so that no request has to wait for the row: the units of this row are lost. It ends the leases of
// the rows on which the batch has refunds or resets.
func (d *dispatch) leaseCalls(requests []*request, own []*ownCall) []*ownCall {
	leases := d.engine.leases
	if leases == nil || !lease.Any(leases) {
		return own
	}
	gives := false
	for _, r := range requests {
		hits := r.call.Hits
		for i := range hits {
			if hits[i].Cost < 0 || r.call.Reset {
				gives = true
				d.dropLease(r.call.Reset, &hits[i])
			}
		}
	}
	asks, returns := lease.Work(leases, gives)
	for i := range returns {
		if !d.engine.locks.has(returns[i].Row) {
			own = append(own, &ownCall{kind: returnUnits, units: &returns[i]})
		}
	}
	for i := range asks {
		if !d.engine.locks.has(asks[i].Row) {
			own = append(own, &ownCall{kind: chargeUnits, charge: &asks[i]})
		}
	}
	return own
}

// dropLease ends the lease of a row that is reset, or to which a hit gives something back. The units
// go back before that: a refund that finds them charged would give back more than was used.
func (d *dispatch) dropLease(reset bool, h *ratelimit.Hit) {
	if d.engine.leases != nil {
		lease.Drop(d.engine.leases, rowOf(h), !reset)
	}
}

// planReturn plans a refund of leased units.
func planReturn(p *plan, back *lease.Return) *entry {
	if before := p.latest[back.Row]; before != nil && before.kind == refund && before.claim == back.Units.Claim {
		before.cost += back.Units.N
		return before
	}
	e := add(p, refund, back.Limit, back.Row, back.Units.N).entry
	e.claim = back.Units.Claim
	return e
}

// returned ends a call that gave units back. Whatever became of it, the row may have more again.
func (d *dispatch) returned(back *lease.Return) { d.engine.blocked.Clear(back.Row) }

// planCharge plans a charge for a lease, as further hits of the requests on the row if there are some.
func planCharge(p *plan, ask *lease.Ask) *entry {
	p.leases = true // also if all leases end before the answer
	e := add(p, take, ask.Limit, ask.Row, 1).entry
	e.n += ask.N - 1
	e.ask = ask
	return e
}

// charged ends a charge for a lease. updateLeases has given the lease what the row has granted.
func (d *dispatch) charged(c *ownCall) {
	if c.entry != nil && c.entry.err != nil {
		lease.Postpone(d.engine.leases, c.charge.Row)
	}
}

// updateLeases updates the leases with the results of a plan. d.sent was read before the plan's
// statements were sent.
func (d *dispatch) updateLeases(p *plan) {
	leases := d.engine.leases
	if leases == nil || lease.Count(leases) == 0 && !p.leases {
		return
	}
	lease.SetRoundTrip(leases, lease.Now(leases)-d.sent)
	for _, e := range p.entries[:p.usedEntries] {
		l := e.view.Limit
		if e.ask != nil {
			l = e.ask.Limit // a limit that differs in its Lease only may be in the entry
		}
		if e.kind != take || l.Lease <= 0 || e.err != nil || !e.answered {
			continue
		}
		waited := e.n
		a := lease.Answer{Row: e.id, Limit: l, Free: e.view.Free, Reset: time.UnixMicro(e.view.Reset), Now: e.view.Now, Ask: e.ask}
		if e.ask != nil {
			waited -= e.ask.N
			if e.granted > waited {
				a.Leased = leased(leases, e, e.granted-waited, d.sent)
			}
		}
		a.Refused = e.granted < waited
		if l.LeaseEarly && a.Free <= 0 {
			a.Refusal = algorithm.Refused(l, &e.view.Row, e.view.Now, 1)
		}
		lease.Update(leases, &a)
	}
}

// leased returns the units that an entry has charged for a lease.
func leased(leases *lease.Set, e *entry, n, sent int64) lease.Units {
	l := e.view.Limit
	life, claim := algorithm.Of(l).Lease(l, &e.view.Row, e.view.Now, lease.MostLife(leases, l))
	return lease.Units{N: n, Ends: sent + life, Claim: claim}
}

// leaseTime is the lease clock, or 0 without leases.
func (d *dispatch) leaseTime() int64 {
	if d.engine.leases == nil {
		return 0
	}
	return lease.Now(d.engine.leases)
}

// holdsLeases reports whether the store may hold units.
func (d *dispatch) holdsLeases() bool {
	return d.engine.leases != nil && lease.Count(d.engine.leases) > 0
}

// addLeased adds the units that are held to the Remaining of the decisions on a request. sent is the
// lease clock, read before the statements were sent: Remaining may have later units already.
func (d *dispatch) addLeased(r *request, sent int64) {
	c := r.call
	for i := range c.Decisions {
		h := &c.Hits[i]
		if h.Limit.Lease <= 0 {
			continue
		}
		if held := lease.HeldSince(d.engine.leases, rowOf(h), sent); held > 0 {
			c.Decisions[i].Remaining = algorithm.Remaining(c.Decisions[i].Limit, c.Decisions[i].Remaining+held)
		}
	}
}

// dropRefused gives back the units that are held of the rows that refused a request of several limits: the
// request may pass then.
func (d *dispatch) dropRefused(r *request) {
	for i := range r.refusals {
		lease.Drop(d.engine.leases, r.refusals[i].id, true)
	}
}

// believed is how long a refusal on a limit is believed, in microseconds: with leases, another
// process may give units back at any moment.
func (e *engine) believed(l *ratelimit.Limit) int64 {
	if e.leases != nil && l.Lease > 0 {
		if horizon := lease.Horizon(e.leases, l); horizon > 0 {
			return horizon
		}
	}
	return known.Trust
}

// endLeases gives all units back, before the store is closed.
func endLeases(s *Store) {
	leases := s.engine.leases
	if leases == nil {
		return
	}
	lease.End(leases)
	for until := time.Now().Add(leaseTimeout); time.Now().Before(until) && s.engine.server.unavailable() == nil; {
		switch {
		case lease.Due(leases):
			batch.Enter(s.leasing, batch.NewCall())
		case batch.Busy(s.leasing):
			time.Sleep(time.Millisecond) // a batch in flight may bring more units
		default:
			return
		}
	}
}
