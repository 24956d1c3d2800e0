package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/known"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Leases implements chain.Store.
func (s *Store) Leases() *lease.Set {
	if s.engine.leases == nil {
		return nil
	}
	return s.engine.leases.Set
}

// updateLeases updates the leases with the rows that a plan of a leasing batch has charged for requests.
func (d *dispatch) updateLeases(p *plan) {
	for _, e := range p.entries[:p.usedEntries] {
		waited := e.n - e.last
		if e.kind != take || waited == 0 || e.view.Limit.Lease <= 0 || e.err != nil || !e.answered {
			continue
		}
		d.engine.leases.Learn(e.id, &e.view, e.granted < waited)
	}
}

// dropRefused gives back the units that are held of the rows that refused a request of several limits: the
// request may pass then.
func (d *dispatch) dropRefused(r *request) {
	for i := range r.refusals {
		lease.Drop(d.engine.leases.Set, r.refusals[i].id, true)
	}
}

// believed is how long a refusal on a limit is believed, in microseconds: with leases, another
// process may give units back at any moment.
func (e *engine) believed(l *ratelimit.Limit) int64 {
	if e.leases != nil && l.Lease > 0 {
		if horizon := lease.Horizon(e.leases.Set, l); horizon > 0 {
			return horizon
		}
	}
	return known.Trust
}
