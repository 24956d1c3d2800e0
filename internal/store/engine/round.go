package engine

import (
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// round is one pass of calls through a batch: plan (calls → entries → statements), send, apply (rows →
// decisions → calls end). The first round of a batch has all of its requests, and calls that nobody waits
// for. A second round has the requests that failed because of others in their statement. The plans of a round
// run in this order, in one pipeline.
type round struct {
	settings     []int64 // the first parameter of statements, see clockSQL
	plan         *plan   // of singles, and of what comes before them
	singles      []*request
	transactions []*transaction
	last         *plan      // of what comes after the requests: plan, or one after the transactions
	background   []*request // calls that nobody waits for
}

// decideRound decides requests in one or more round trips, and finishes those that are decided. It returns
// those that need another round: a statement reached its lock timeout, or failed because of another request.
func (d *work) decideRound(requests []*request, settings []int64, oneByOne bool) ([]*request, error) {
	r := d.planRound(requests, settings, oneByOne)
	statements := r.plan.write(d.store.texts, settings)
	entered := r.plan.entered
	if len(r.transactions) > 0 {
		statements, entered = writeAll(r.transactions, statements, entered)
	}
	if r.last != r.plan {
		statements = append(statements, r.last.write(d.store.texts, settings)...)
	}
	failed, err := d.execute(statements, entered)
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

// planRound plans requests. With oneByOne, which is for requests that failed with others, each hit has a
// statement of its own, and no call that nobody waits for goes with them.
func (d *work) planRound(requests []*request, settings []int64, oneByOne bool) *round {
	singles := requests
	var several []*request
	if d.several {
		singles, several = singlesAndSeveral(requests)
	}
	p := plans.Get().(*plan)
	p.oneByOne = oneByOne
	r := &round{settings: settings, plan: p, singles: singles, last: p}
	if !oneByOne {
		r.background = d.collect(requests)
		if len(several) > 0 {
			several = d.refuseKnown(several)
		}
	}
	for _, one := range r.background {
		if one.call.Order == batch.Before {
			addBackground(p, one)
		}
	}
	addRequests(p, singles)
	if p.inFlight {
		_ = d.enter(p) // its error is that of the hits
	}
	if len(several) > 0 {
		r.transactions = d.firstTransactions(several, settings, oneByOne)
		r.last = plans.Get().(*plan)
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

// collect returns the calls that nobody waits for and that go with requests. Units of leases are refunded
// before a request refunds quota of their rows or resets them.
func (d *work) collect(requests []*request) []*request {
	idle := true
	refunds := false
	for _, r := range requests {
		hits := r.call.Hits
		for i := range hits {
			idle = false
			if hits[i].Cost < 0 || r.call.Reset {
				refunds = true
				lease.Drop(d.store.rows, rowOf(&hits[i]))
			}
		}
	}
	var collected []*request
	var locked []*batch.Call
	for _, c := range batch.Collect(d.store.background, idle, refunds) {
		if lease.HasTimedOut(d.store.rows, rowOf(&c.Hits[0])) {
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

// singlesAndSeveral returns the requests that are decided by themselves, which are those of one hit, of none,
// and resets, and the others, which are all or nothing.
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

// refuseKnown refuses the requests of several hits that are known not to fit since they
// entered the queue, and returns the others: a request that cannot pass would make its
// transaction fail.
func (d *work) refuseKnown(requests []*request) []*request {
	calls := make([]*batch.Call, 0, len(requests))
	for _, r := range requests {
		calls = append(calls, r.call)
	}
	d.store.findRows(calls)
	refused := d.store.refuseKnown(calls, nil)
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
	d.stats.Requests -= int64(refused)
	d.finish(decided, nil)
	return left
}

// writeAll adds the statements of transactions, and the slots that they charge.
func writeAll(transactions []*transaction, statements []*pgdb.Statement,
	entered []slots.Range) ([]*pgdb.Statement, []slots.Range) {
	for _, t := range transactions {
		statements = append(statements, t.write()...)
		entered = append(entered, t.plan.entered...)
	}
	return statements, entered
}

// apply reads the results of a round, or takes the error of its pipeline. It finishes the requests that are
// decided, and returns those that need another round.
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
		statements, entered := writeAll(next, nil, nil)
		if _, err := d.execute(statements, entered); err != nil {
			return again, err
		}
	}
	d.cleanUpAfter(r.plan)
	if r.last != r.plan {
		r.last.free()
	}
	r.plan.free()
	return again, nil
}

// cleanUpAfter cleans up after a plan, with the probability of the cleaner.
func (d *work) cleanUpAfter(p *plan) {
	if d.store.cleaner.random() < d.store.cleaner.probability {
		d.store.cleaner.after(p)
	}
}

// applyRows passes the rows of a plan on to the leases, and to engine.rows.
func (d *work) applyRows(p *plan) {
	if p.remembered {
		d.updateLeases(p)
	}
	if d.store.learns == nil || !d.store.learns.Wanted() {
		return
	}
	rows := make([]Row, 0, p.usedEntries)
	for _, e := range p.entries[:p.usedEntries] {
		if e.answered && e.err == nil {
			rows = append(rows, Row{ID: e.id, View: &e.view})
		}
	}
	d.store.learns.Learn(rows)
}

// applySingles finishes the requests that are decided by themselves, and returns those that need another
// round. failed reports whether a statement has failed.
func (d *work) applySingles(r *round, failed bool) []*request {
	p := r.plan
	p.read()
	if failed || lease.AnyLocks(d.store.rows) {
		d.learnLocks(p)
	}
	decideGranted(r.singles)
	var again []*request
	for _, one := range r.singles {
		c := one.call
		if granted := len(c.Decisions); granted < len(one.positions) || granted == 0 {
			if err := d.decideUnusual(one); errors.Is(err, errLocked) || errors.Is(err, errShared) {
				again = append(again, one)
				continue
			} else if err != nil {
				d.finish([]*request{one}, err)
				continue
			}
		}
		if len(c.Rows) > 0 {
			d.addHeld(c, d.sent)
		}
	}
	if p.inFlight {
		d.hold(r.singles)
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

// decideGranted writes the decisions on hits that were simply granted, up to the first hit
// of each request that was not. It does so in one loop for all requests.
func decideGranted(requests []*request) {
	micros := int64(0)
	reset := time.UnixMicro(0)
	for _, r := range requests {
		decisions := r.call.Decisions[:0]
		positions := r.positions
		for i := range positions {
			at := &positions[i]
			e := at.entry
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

// decideUnusual decides a request that was not simply granted: a refusal, a reset or a failed
// statement. The error is that of its statement.
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
			c.Decisions = append(c.Decisions, decideOne(h, &e.view))
			if e.kind == take && !e.remembered {
				e.remembered = true
				lease.Remember(d.store.rows, e.id, &e.view, h.Cost, c.Decisions[i].RetryAfter, d.sequence)
			}
		}
	}
	return nil
}

// decideOne returns the decision on a hit that is a refund or a peek, or was refused.
func decideOne(h *ratelimit.Hit, v *algorithm.View) ratelimit.Decision {
	if h.Cost < 0 || h.Peek && algorithm.Fits(v.Limit, &v.Row, v.Now, h.Cost) {
		return algorithm.Admitted(v.Limit, &v.Row, v.Now)
	}
	return algorithm.Refused(v.Limit, &v.Row, v.Now, h.Cost)
}
