package engine

import (
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// round is one pass of requests through a batch: plan (calls → entries → statements), send, apply (rows →
// decisions → calls end). The first round of a batch has all of its requests, and background calls. A second
// round has the requests that failed because of others in their statement. All plans of a round are sent in
// one pipeline, in this order.
type round struct {
	settings     []int64 // the first parameter of statements, see clockSQL
	plan         *plan   // of singles, and of what comes before them
	singles      []*request
	transactions []*transaction
	last         *plan      // of what comes after the requests: plan, or one after the transactions
	background   []*request // calls that nobody waits for
}

// decideRound decides requests in one or more round trips, and finishes those that it decides. It returns
// those that need another round: their statement reached its lock timeout, or failed because of another
// request.
func (d *work) decideRound(requests []*request, settings []int64, oneByOne bool) ([]*request, error) {
	r := d.planRound(requests, settings, oneByOne)
	statements := r.plan.write(d.store.texts, settings)
	allocated := r.plan.allocated
	if len(r.transactions) > 0 {
		statements, allocated = writeAll(r.transactions, statements, allocated)
	}
	if r.last != r.plan {
		statements = append(statements, r.last.write(d.store.texts, settings)...)
	}
	failed, err := d.execute(statements, allocated)
	if err != nil && unsent(statements) {
		for _, one := range r.background {
			one.call.Err = err // it certainly had no effect
		}
	}
	return d.apply(r, failed, err)
}

// unsent reports whether no statement has reached the server.
func unsent(statements []*pgdb.Statement) bool {
	for _, s := range statements {
		if !errors.Is(s.Err, pg.ErrNotSent) {
			return false
		}
	}
	return true
}

// planRound plans requests. If oneByOne is set, as when requests are retried after failing together, each hit
// gets its own statement, and background calls are left out.
func (d *work) planRound(requests []*request, settings []int64, oneByOne bool) *round {
	singles := requests
	var several []*request
	if d.hasSeveral {
		singles, several = singlesAndSeveral(requests)
	}
	p := newPlan(len(requests))
	p.oneByOne = oneByOne
	r := &round{settings: settings, plan: p, singles: singles, last: p}
	if !oneByOne {
		r.background = d.collectBackground(requests)
		if len(several) > 0 {
			several = d.refuseRemembered(several)
		}
	}
	for _, one := range r.background {
		if one.call.Order == batch.Before {
			addBackground(p, one)
		}
	}
	addRequests(p, singles)
	if p.inFlight {
		_ = d.allocateSlots(p) // its error is that of the hits
	}
	if len(several) > 0 {
		r.transactions = d.newTransactions(several, settings, oneByOne, oneByOne)
		r.last = newPlan(0)
	}
	if !oneByOne {
		d.chargeUnits(p)
		for _, one := range r.background {
			if one.call.Order == batch.After {
				addBackground(r.last, one)
			}
		}
		for _, one := range several { // a transaction would fail if a row granted less
			for _, row := range one.call.Rows {
				d.store.renew(row)
			}
		}
	}
	return r
}

// collectBackground returns the background calls to send with requests. If a request refunds or resets a row,
// the units of its lease are refunded first.
func (d *work) collectBackground(requests []*request) []*request {
	idle := true
	refunds := false
	for _, r := range requests {
		hits := r.call.Hits
		for i := range hits {
			idle = false
			if hits[i].Cost < 0 || r.call.Reset {
				refunds = true
				lease.EndLease(d.store.rows, rowOf(&hits[i]))
			}
		}
	}
	var collected []*request
	var locked []*batch.Call
	for _, c := range batch.Collect(d.store.background, idle, refunds) {
		if lease.HadLockTimeout(d.store.rows, rowOf(&c.Hits[0])) {
			c.Err = errLocked
			locked = append(locked, c)
		} else {
			collected = append(collected, &request{call: c})
		}
	}
	batch.Finish(d.queue, locked, nil)
	if len(collected) > 0 {
		d.requests = append(append([]*request(nil), d.requests...), collected...)
	}
	return collected
}

// singlesAndSeveral splits requests into those decided alone (at most one hit, or a reset) and those with
// several hits, which pass as a whole or not at all.
func singlesAndSeveral(requests []*request) ([]*request, []*request) {
	var singles, several []*request
	for i, r := range requests {
		switch {
		case len(r.call.Hits) < 2 || r.call.Reset:
			if several != nil {
				singles = append(singles, r)
			}
		case several == nil: // most batches have none of these
			singles = append(singles, requests[:i]...)
			several = append(several, r)
		default:
			several = append(several, r)
		}
	}
	if several == nil {
		return requests, nil
	}
	return singles, several
}

// refuseRemembered refuses requests with several hits if a refusal remembered since they entered the queue
// shows that they cannot pass, because such a request would roll back its transaction. It returns the others.
func (d *work) refuseRemembered(requests []*request) []*request {
	calls := make([]*batch.Call, 0, len(requests))
	for _, r := range requests {
		calls = append(calls, r.call)
	}
	d.store.findRows(calls)
	refused := d.store.refuseRemembered(calls, nil)
	if refused == 0 {
		return requests
	}
	var left, decided []*request
	for _, r := range requests {
		if len(r.call.Decisions) > 0 {
			decided = append(decided, r)
		} else {
			left = append(left, r)
		}
	}
	count(d.store.stats, Requests, -int64(refused))
	d.finish(decided, nil)
	return left
}

// writeAll appends the statements of transactions, and the slots that they take.
func writeAll(transactions []*transaction, statements []*pgdb.Statement,
	allocated []slotRange) ([]*pgdb.Statement, []slotRange) {
	for _, t := range transactions {
		statements = append(statements, t.write()...)
		allocated = append(allocated, t.plan.allocated...)
	}
	return statements, allocated
}

// apply reads the results of a round, or returns err, the error of its pipeline. It finishes the requests
// that are decided, and returns those that need another round.
func (d *work) apply(r *round, failed bool, err error) ([]*request, error) {
	if err != nil {
		return nil, err
	}
	again := d.applySingles(r, failed)
	for transactions := r.transactions; len(transactions) > 0; {
		var next []*transaction
		for _, t := range transactions {
			further, late := t.finish()
			next = append(next, further...)
			again = append(again, late...)
		}
		if transactions = next; len(next) == 0 {
			break
		}
		statements, allocated := writeAll(next, nil, nil)
		if _, err := d.execute(statements, allocated); err != nil {
			return again, err
		}
	}
	d.startCleanup(r.plan)
	return again, nil
}

// startCleanup sometimes starts a cleanup of expired rows, with probability cleaner.probability.
func (d *work) startCleanup(p *plan) {
	if d.store.cleaner.random() < d.store.cleaner.probability {
		d.store.cleaner.start(p)
	}
}

// applyRows passes a plan's rows to the leases and to Options.Rows.
func (d *work) applyRows(p *plan) {
	if p.remembered {
		d.updateLeases(p)
	}
	if d.store.rowObserver == nil || !d.store.rowObserver.Enabled() {
		return
	}
	rows := make([]Row, 0, len(p.entries))
	for _, e := range p.entries {
		if e.answered && e.err == nil {
			rows = append(rows, Row{ID: e.id, View: &e.view})
		}
	}
	d.store.rowObserver.Observe(rows)
}

// applySingles finishes the requests that are decided alone, and returns those that need another round.
// failed reports whether any statement failed.
func (d *work) applySingles(r *round, failed bool) []*request {
	p := r.plan
	p.read()
	if failed || lease.AnyLocks(d.store.rows) {
		d.recordLocks(p)
	}
	decideGranted(r.singles)
	var again []*request
	for _, one := range r.singles {
		c := one.call
		if granted := len(c.Decisions); granted < len(one.positions) || granted == 0 {
			if err := d.decideUnusual(one); errors.Is(err, errLocked) || errors.Is(err, errBadValue) {
				again = append(again, one)
				continue
			} else if err != nil {
				d.finish([]*request{one}, err)
				continue
			}
		}
		if len(c.Rows) > 0 {
			d.addLeasedUnits(c, d.sent)
		}
	}
	if p.inFlight {
		d.holdSlots(r.singles)
	}
	d.applyRows(p)
	if r.last != p {
		r.last.read()
		d.applyRows(r.last)
	}
	d.applyBackground(r.background)
	for _, one := range again {
		one.finished = true // not yet, but finish skips it
	}
	d.finish(r.background, nil)
	d.finish(r.singles, nil)
	for _, one := range again {
		one.finished = false
	}
	return again
}

// decideGranted sets the decisions on the granted takes of requests. For each request, it stops at the first
// hit that was not granted. All requests are handled in one loop, for Yaegi.
func decideGranted(requests []*request) {
	micros := int64(0)
	reset := time.UnixMicro(0)
	for _, r := range requests {
		decisions := r.call.Decisions[:0]
		positions := r.positions
		for i := range positions {
			at := &positions[i]
			e := at.entry
			if e == nil { // the simulation has decided the hit
				decisions = append(decisions, r.call.Decisions[i])
				continue
			}
			if at.nth >= e.granted {
				break // only takes that succeeded grant anything
			}
			left := e.view.Free + (e.granted-1-at.nth)*e.cost
			if left < 0 {
				left = 0
			}
			if left > e.view.Quota {
				left = e.view.Quota
			}
			if e.view.Reset != micros {
				micros = e.view.Reset
				reset = time.UnixMicro(micros)
			}
			charged := e.view.Now
			if e.view.Row.Start > charged || e.view.Row.Refill > charged || len(e.view.Row.Hits) > 0 {
				charged = algorithm.ChargedAt(e.view.Limit, &e.view.Row, charged)
			}
			decisions = append(decisions, ratelimit.Decision{Allowed: true, Limit: e.view.Quota,
				Remaining: left, Reset: reset, DecidedAt: charged})
		}
		r.call.Decisions = decisions
	}
}

// decideUnusual decides a request that decideGranted did not decide: a refusal, a refund, a reset or a failed
// statement. It returns the error of the statement.
func (d *work) decideUnusual(r *request) error {
	c := r.call
	c.Decisions = c.Decisions[:0]
	d.clearRefunded(r)
	if err := failure(r); err != nil {
		if at := &r.positions[0]; at.refund != nil && at.refund.err == nil {
			r.refunded = true
		}
		return err
	}
	if !c.Reset {
		for i := range c.Hits {
			h := &c.Hits[i]
			e := r.positions[i].entry
			c.Decisions = append(c.Decisions, decisionOn(h, &e.view))
			if e.kind == take && !e.remembered {
				e.remembered = true
				lease.RememberRefusal(d.store.rows, e.id, &e.view, h.Cost, c.Decisions[i].RetryAfter,
					d.sequence)
			}
		}
	}
	return nil
}

// decisionOn returns the decision on a hit that was refunded, peeked or refused.
func decisionOn(h *ratelimit.Hit, v *algorithm.View) ratelimit.Decision {
	if h.Cost < 0 || h.Peek && algorithm.Fits(v.Limit, &v.Row, v.Now, h.Cost) {
		return algorithm.Admitted(v.Limit, &v.Row, v.Now)
	}
	return algorithm.Refused(v.Limit, &v.Row, v.Now, h.Cost)
}
