package engine

import (
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// round is one way of calls through a batch, made of values: plan (calls → entries → statements), send, apply (rows →
// decisions → calls end). The first round of a batch has all of its requests, and the calls of the store itself.
// Further rounds have the requests that have waited for a lock in vain. The plans of a round run in this order, in
// one pipeline.
type round struct {
	settings []int64 // the first parameter of statements, see clockSQL
	own      []*ownCall

	leaves       *plan // of slots; nil without
	plan         *plan // of singles, and of what comes before them
	singles      []*request
	transactions []*transaction
	charges      *plan // for leases: the plan of singles, or one after the transactions, if there are some
}

// planRound plans requests. With oneByOne, which is for requests that have failed with others, each hit has a
// statement of its own, and the store adds no calls of its own.
func (d *dispatch) planRound(requests []*request, settings []int64, oneByOne bool) *round {
	singles, several := singlesAndSeveral(requests)
	r := &round{settings: settings, plan: newPlan(), singles: singles}
	r.plan.oneByOne = oneByOne
	if !oneByOne {
		several = d.refuseKnown(several)
		r.own = d.ownCalls(requests)
		d.own = r.own
	}
	var charges []*ownCall
	for _, c := range r.own {
		switch c.kind {
		case leaveSlots:
			if r.leaves == nil {
				r.leaves = newPlan()
			}
			c.plan(r.leaves)
		case chargeUnits:
			charges = append(charges, c)
		default:
			c.plan(r.plan)
		}
	}
	addRequests(r.plan, singles)
	_ = d.enter(r.plan) // its error is that of the hits
	r.transactions = d.firstTransactions(several, settings, oneByOne)
	r.charges = r.plan
	if len(charges) > 0 && len(r.transactions) > 0 {
		r.charges = newPlan()
	}
	for _, c := range charges {
		c.plan(r.charges)
	}
	return r
}

// singlesAndSeveral returns the requests that are decided by themselves, which are those of one hit, of none, and
// resets, and the others, which are all or nothing.
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

// send runs the pipeline of a round. It reports whether a statement has failed.
func (d *dispatch) send(r *round) (bool, error) {
	var statements []*pgdb.Statement
	if r.leaves != nil {
		statements = append(statements, r.leaves.write(d.engine.texts, r.settings)...)
	}
	if written := r.plan.write(d.engine.texts, r.settings); statements == nil {
		statements = written
	} else {
		statements = append(statements, written...)
	}
	entered := r.plan.entered
	for _, t := range r.transactions {
		statements = append(statements, t.write()...)
		entered = append(entered, t.plan.entered...)
	}
	if r.charges != r.plan {
		statements = append(statements, r.charges.write(d.engine.texts, r.settings)...)
	}
	return d.execute(statements, entered)
}

// apply reads the results of a round, or takes the error of its pipeline. It ends the calls that are decided, and returns
// the requests that have waited for a lock in vain.
func (d *dispatch) apply(r *round, failed bool, err error) ([]*request, error) {
	if err == nil && failed {
		if err = d.sendDivided(r); err != nil {
			for _, t := range r.transactions { // they may have taken effect, and their requests fail
				d.engine.flight.leave(t.plan.entered)
			}
		}
	}
	if err != nil {
		d.endOwn(r.own, err)
		return nil, err
	}
	if r.leaves != nil {
		r.leaves.read()
	}
	waiting := d.applySingles(r)
	if r.charges != r.plan {
		r.charges.read()
		d.applyRows(r.charges)
	}
	d.endOwn(r.own, nil)
	for transactions := r.transactions; len(transactions) > 0; {
		var next []*transaction
		for _, t := range transactions {
			again, late := t.finish()
			next = append(next, again...)
			waiting = append(waiting, late...)
		}
		transactions = next
		if err := d.sendTransactions(next); err != nil {
			return waiting, err
		}
	}
	d.cleanUpAfter(r.plan)
	r.free()
	return waiting, nil
}

// cleanUpAfter has the rows cleaned up that a plan leaves.
func (d *dispatch) cleanUpAfter(p *plan) {
	if d.engine.server.random() < d.engine.cleaner.probability {
		d.engine.cleaner.after(p)
	}
	d.engine.bounds.see(p.bounded)
}

// free frees the plans of a round.
func (r *round) free() {
	if r.leaves != nil {
		r.leaves.free()
	}
	if r.charges != r.plan {
		r.charges.free()
	}
	r.plan.free()
}

// sendTransactions sends what transactions need after their first round trip.
func (d *dispatch) sendTransactions(transactions []*transaction) error {
	if len(transactions) == 0 {
		return nil
	}
	var statements []*pgdb.Statement
	var entered []slots
	for _, t := range transactions {
		statements = append(statements, t.write()...)
		entered = append(entered, t.plan.entered...)
	}
	_, err := d.execute(statements, entered)
	return err
}

// applyRows has leases and local decisions learn the rows of a plan.
func (d *dispatch) applyRows(p *plan) {
	d.updateLeases(p)
	d.engine.local.remember(p)
}

// applySingles ends the requests that are decided by themselves, and returns those that have waited for a lock in vain.
func (d *dispatch) applySingles(r *round) []*request {
	p := r.plan
	p.read()
	d.engine.locks.learn(p)
	decideGranted(r.singles)
	leasing := d.holdsLeases()
	finishing := d.finishing[:0]
	var waiting []*request
	for _, one := range r.singles {
		c := one.call
		if granted := len(c.Decisions); granted < len(one.positions) || granted == 0 {
			if err := d.decideUnusual(one); errors.Is(err, errLocked) {
				waiting = append(waiting, one)
				continue
			} else if err != nil {
				d.finish([]*request{one}, err)
				continue
			}
		}
		if leasing {
			d.addLeased(one, d.sent)
		}
		finishing = append(finishing, c)
	}
	if p.inFlight {
		d.hold(r.singles)
	}
	d.applyRows(p)
	d.finishing = finishing
	// Not before: after a panic, end finishes what is not finished.
	for _, one := range r.singles {
		one.finished = true
	}
	for _, one := range waiting {
		one.finished = false
	}
	d.count()
	batch.Finish(d.queue, finishing, nil)
	return waiting
}

// sendDivided sends each entry by itself of the statements that failed because of a value of one of them: one client's
// key must not fail the decisions on all others.
func (d *dispatch) sendDivided(r *round) error {
	statements := r.plan.divide(d.engine.texts, r.settings)
	if r.plan.inFlight {
		_ = d.enter(r.plan)
	}
	_, err := d.execute(statements, r.plan.entered)
	return err
}

// divide returns a statement for each entry of the statements that failed because of a value
// of one of them.
func (p *plan) divide(texts *statements, settings []int64) []*pgdb.Statement {
	var all []*pgdb.Statement
	var divided []*group
	for _, stage := range p.stages {
		for _, g := range stage {
			code := g.statement.Code
			if len(g.entries) < 2 || code == sqlstate.LockNotAvailable || !sqlstate.IsAboutEntry(code) {
				continue
			}
			for _, e := range g.entries {
				one := nextGroup(p, g.statementKey)
				one.entries = append(one.entries, e)
				one.write(texts, settings)
				all = one.appendTo(all)
				divided = append(divided, one)
			}
			g.entries = g.entries[:0]
			g.statement = pgdb.Statement{}
		}
	}
	if len(divided) > 0 {
		p.stages = append(p.stages, divided)
	}
	return all
}
