package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// decide decides the calls of a batch. It is batch.Options.Decide, so it finishes each call
// once, also if something panics.
func (e *engine) decide(q *batch.Queue, calls []*batch.Call, deadline time.Time) {
	began := time.Now()
	wait := began.Sub(deadline) + batch.Timeout(q) // of the call that came first
	size := len(calls)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	d := newDispatch(e, q, ctx, batch.Split(calls))
	d.stats.Requests = int64(len(calls))
	err := batch.PanicError(func() { run(d) })
	d.end(err)
	addBatch(e.counts, size, wait, time.Since(began))
}

// run decides the requests, and finishes those that are decided. end finishes the others.
func run(d *dispatch) {
	if atomic.LoadInt32(&d.engine.tables.ready) == 0 {
		if err := d.engine.tables.wait(d.ctx); err != nil {
			d.fail(d.requests, err)
			return
		}
	}
	if atomic.LoadInt32(&d.engine.tables.inParts) != 0 { // they were found when the time was over
		d.fail(d.requests, ratelimit.ErrTimeout)
		return
	}
	requests := d.requests
	var err error
	if atomic.LoadInt32(&d.engine.bounds.on) != 0 {
		requests, err = d.shareKeys()
	}
	if err == nil {
		err = d.decideRequests(d.refuseLocked(requests), false)
	}
	if err == nil && len(d.waiting)+len(d.suspects) > 0 {
		err = d.decideWaiting()
	}
	if err != nil {
		d.fail(d.requests, err)
	}
}

// decideRequests decides requests in one round trip, or a few, and finishes those that are decided.
// Afterwards d.waiting has those that have waited for a lock in vain. With oneByOne, which is for
// requests that have failed with others, each hit has a statement of its own, and nothing is charged
// or given back for leases.
func (d *dispatch) decideRequests(requests []*request, oneByOne bool) error {
	singles, several := singlesAndSeveral(requests)
	if !oneByOne {
		several = d.refuseKnown(several)
	}
	p := newPlan()
	p.oneByOne = oneByOne
	settled := d.planSettlements(p)
	asks := d.planReturns(p, requests)
	addRequests(p, singles)
	if p.maxKeys {
		d.engine.bounds.begin()
	}
	_ = d.enter(p) // its error is that of the hits
	transactions := d.firstTransactions(several, oneByOne)
	surplus := p // what is charged for leases: after the transactions, if there are some
	if len(asks) > 0 && len(transactions) > 0 {
		surplus = newPlan()
	}
	addAsks(surplus, asks)

	var exits []*exit
	var statements []*Statement
	if !oneByOne && atomic.LoadInt32(&d.engine.flight.waiting) != 0 {
		exits = d.planExits()
		for _, e := range exits {
			statements = append(statements, e.write(d.engine.texts, d.settings))
		}
	}
	if written := p.write(d.engine.texts, d.settings); statements == nil {
		statements = written
	} else {
		statements = append(statements, written...)
	}
	for _, t := range transactions {
		statements = append(statements, t.write()...)
	}
	if surplus != p {
		statements = append(statements, surplus.write(d.engine.texts, d.settings)...)
	}
	err := d.execute(statements)
	if exits != nil {
		d.finishExits(exits, err)
	}
	if err == nil {
		err = d.finishSingles(p, singles)
	}
	d.finishSettlements(settled, err)
	if err != nil {
		return err
	}
	if surplus != p {
		surplus.read()
		d.updateLeases(surplus)
		d.engine.local.remember(surplus)
		surplus.free()
	}
	if err := d.finishTransactions(transactions); err != nil {
		return err
	}
	if d.engine.server.random() < d.engine.cleaner.probability {
		d.engine.cleaner.after(p)
	}
	p.free()
	return nil
}

// finishTransactions reads the results of transactions that were sent, and sends what they need
// after that.
func (d *dispatch) finishTransactions(transactions []*transaction) error {
	for len(transactions) > 0 {
		var next []*transaction
		for _, t := range transactions {
			next = append(next, t.finish()...)
		}
		transactions = next
		if len(next) == 0 {
			break
		}
		var statements []*Statement
		for _, t := range next {
			statements = append(statements, t.write()...)
		}
		if err := d.execute(statements); err != nil {
			return err
		}
	}
	return nil
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

// refuseKnown refuses the requests of several hits that are known not to fit since they
// entered the queue, and returns the others: a request that cannot pass would make its
// transaction fail.
func (d *dispatch) refuseKnown(requests []*request) []*request {
	if len(requests) == 0 {
		return nil
	}
	calls := make([]*batch.Call, 0, len(requests))
	for _, r := range requests {
		calls = append(calls, r.call)
	}
	refused := d.engine.refuseKnown(calls, nil)
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

// finishSingles finishes the requests that are decided by themselves.
func (d *dispatch) finishSingles(p *plan, requests []*request) error {
	if d.failed {
		divided := p.divide(d.engine.texts, d.settings)
		if p.inFlight {
			_ = d.enter(p)
		}
		if err := d.execute(divided); err != nil {
			return err
		}
		d.suspectWaits(p)
	}
	p.read()
	decideGranted(requests)
	leasing := d.holdsLeases()
	finishing := d.finishing[:0]
	for _, r := range requests {
		c := r.call
		if granted := len(c.Decisions); granted < len(r.positions) || granted == 0 {
			if err := d.decideUnusual(r); errors.Is(err, errLocked) {
				d.waiting = append(d.waiting, r)
				continue
			} else if err != nil {
				d.finish([]*request{r}, err)
				continue
			}
		}
		if leasing {
			d.addLeased(r, d.sent)
		}
		finishing = append(finishing, c)
	}
	d.updateLeases(p)
	if p.inFlight {
		d.hold(requests)
	}
	d.engine.local.remember(p)
	d.finishing = finishing
	d.unshare(finishing)
	// Not before: after a panic, end finishes what is not finished.
	for _, r := range requests {
		r.finished = true
	}
	for _, r := range d.waiting {
		r.finished = false
	}
	d.count()
	batch.Finish(d.queue, finishing, nil)
	return nil
}

// decideUnusual decides a request that was not simply granted: a refusal, a reset or a failed
// statement. The error is that of its statement.
func (d *dispatch) decideUnusual(r *request) error {
	c := r.call
	c.Decisions = c.Decisions[:0]
	d.clearRefunded(r)
	if err := failure(r); err != nil {
		return err
	}
	if !c.Reset {
		for i := range c.Hits {
			h := &c.Hits[i]
			e := r.positions[i].entry
			c.Decisions = append(c.Decisions, decideOne(h, &e.view))
			if e.kind == take {
				d.engine.blocked.remember(e.id, &e.view, h.Cost, c.Decisions[i].RetryAfter, d.sequence, d.engine.believed(h.Limit))
			}
		}
	}
	return nil
}

// decideOne is the decision on a hit that was refunded, looked at or refused.
func decideOne(h *ratelimit.Hit, v *algorithm.View) ratelimit.Decision {
	if h.Cost < 0 || h.Peek && algorithm.Fits(v.Limit, &v.Row, v.Now, h.Cost) {
		return algorithm.Admitted(v.Limit, &v.Row, v.Now)
	}
	return algorithm.Refused(v.Limit, &v.Row, v.Now, h.Cost)
}

// divide returns a statement for each entry of the statements that failed because of a value
// of one of them: one client's key must not fail the decisions on all others.
func (p *plan) divide(texts *statements, settings []int64) []*Statement {
	var all []*Statement
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
			g.statement = Statement{}
		}
	}
	if len(divided) > 0 {
		p.stages = append(p.stages, divided)
	}
	return all
}
