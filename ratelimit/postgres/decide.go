package postgres

import (
	"context"
	"math/rand"
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
	d := newDecision(e, q, ctx, batch.Split(calls))
	d.stats.Requests = int64(len(calls))
	err := batch.PanicError(func() { run(d) })
	d.end(err)
	addBatch(e.counts, size, wait, time.Since(began))
}

// run decides the requests, and finishes those with a known outcome. The others are left to end.
func run(d *decision) {
	if atomic.LoadInt32(&d.engine.tables.ready) == 0 {
		if err := d.engine.tables.wait(d.ctx); err != nil {
			d.fail(d.requests, err)
			return
		}
	}
	requests := d.requests
	if atomic.LoadInt32(&d.engine.locks.any) != 0 {
		var err error
		if requests, err = d.refuseLocked(requests); err != nil {
			d.fail(d.requests, err)
			return
		}
	}
	alone, several := split(requests)
	p := newPlan()
	asks := d.planReturns(p, requests)
	addRequests(p, alone)
	var surplus *plan // what is charged after the transactions
	if len(several) == 0 {
		addAsks(p, asks)
	} else if len(asks) > 0 {
		surplus = newPlan()
		addAsks(surplus, asks)
	}
	statements := p.write(d.engine.texts, d.settings)
	var transactions []*transaction
	if len(several) > 0 {
		transactions = d.firstTransactions(d.refuseKnown(several))
	}
	for first := true; first || len(transactions) > 0; first = false {
		if !first {
			statements = nil
		}
		for _, t := range transactions {
			statements = append(statements, t.write()...)
		}
		if first && surplus != nil {
			statements = append(statements, surplus.write(d.engine.texts, d.settings)...)
		}
		if err := d.execute(statements); err != nil {
			d.fail(d.requests, err)
			return
		}
		if first && !d.finishAlone(p, alone) {
			return
		}
		if first && surplus != nil {
			surplus.read()
			d.noteLeases(surplus)
			surplus.free()
		}
		var next []*transaction
		for _, t := range transactions {
			next = append(next, t.finish()...)
		}
		transactions = next
	}
	if rand.Float64() < d.engine.cleaner.probability {
		d.engine.cleaner.after(p)
	}
	p.free()
	if len(d.postponed) > 0 {
		d.decidePostponed()
	}
}

// split separates the requests that are decided by themselves: of one hit, of none, and
// resets. The others are all or nothing.
func split(requests []*request) (alone, several []*request) {
	for i, r := range requests {
		if len(r.call.Hits) < 2 || r.call.Reset {
			continue
		}
		// Most batches have none of these.
		alone = append([]*request(nil), requests[:i]...)
		several = []*request{}
		for _, r := range requests[i:] {
			if len(r.call.Hits) < 2 || r.call.Reset {
				alone = append(alone, r)
			} else {
				several = append(several, r)
			}
		}
		return alone, several
	}
	return requests, nil
}

// refuseKnown refuses the requests of several hits that are known not to fit since they
// entered the queue, and returns the others: a request that cannot pass would make its
// transaction fail.
func (d *decision) refuseKnown(requests []*request) []*request {
	calls := make([]*batch.Call, 0, len(requests))
	for _, r := range requests {
		calls = append(calls, r.call)
	}
	if refuseAll(d.engine.blocked, calls) == 0 {
		return requests
	}
	var left, refused []*request
	for _, r := range requests {
		if len(r.call.Decisions) > 0 {
			refused = append(refused, r)
		} else {
			left = append(left, r)
		}
	}
	d.stats.Blocked += int64(len(refused))
	d.stats.Requests -= int64(len(refused))
	d.finish(refused, nil)
	return left
}

// finishAlone finishes the requests that are decided by themselves. It reports whether the
// batch can go on.
func (d *decision) finishAlone(p *plan, requests []*request) bool {
	if d.failed {
		var err error
		if requests, err = d.runApart(p, requests); err != nil {
			d.fail(d.requests, err)
			return false
		}
	}
	p.read()
	decideGranted(requests)
	held := d.holdsLeases()
	finishing := d.finishing[:0]
	for _, r := range requests {
		c := r.call
		if granted := len(c.Decisions); granted < len(r.positions) || granted == 0 {
			if err := d.decideUnusual(r); err != nil {
				d.finish([]*request{r}, err)
				continue
			}
		}
		if held {
			d.addHeld(r, d.sent)
		}
		finishing = append(finishing, c)
	}
	d.noteLeases(p)
	d.finishing = finishing
	// Not before: after a panic, end finishes what is not finished.
	for _, r := range requests {
		r.finished = true
	}
	d.count()
	batch.Finish(d.queue, finishing, nil)
	return true
}

// decideUnusual decides a request that was not simply granted: a refusal, a reset or a failed
// statement. The error is that of its statement.
func (d *decision) decideUnusual(r *request) error {
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
				d.engine.blocked.remember(e.id, &e.view, h.Cost, c.Decisions[i].RetryAfter, d.began, d.engine.believed(h.Limit))
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

// apartRounds bounds how often runApart runs statements, so that a batch does not spend all
// of its time on waits for locks.
const apartRounds = 3

// runApart runs again the statements that failed because of one of their entries: one
// client's key, or one locked row, must not fail the decisions on all others. It postpones
// the requests on locked rows, and returns the others.
func (d *decision) runApart(p *plan, requests []*request) ([]*request, error) {
	for round := 0; round < apartRounds; round++ {
		var holders map[rowKey]int64
		if waited := p.waitedForLock(); len(waited) > 0 {
			var unseen map[rowKey]bool
			var err error
			if holders, unseen, err = d.findLocked(waited); err != nil {
				return nil, err
			}
			d.rememberAlone(p, unseen)
			// The others are decided, even if their rows are locked by now.
			waiting, decided := splitWaiting(requests)
			waiting = d.postponeBusy(d.postpone(waiting, holders), p.busyAlone(holders, unseen))
			requests = decided
			requests = append(requests, waiting...)
		}
		apart := p.takeApart(d.engine.texts, d.settings, holders)
		if len(apart) == 0 {
			break
		}
		if err := d.execute(apart); err != nil {
			return nil, err
		}
	}
	return requests, nil
}

// takeApart returns statements for the entries of those that failed because of one of them.
// If that was a locked row, the entries of all other rows share a statement, else each entry
// gets its own. An entry that has had its own has its error.
func (p *plan) takeApart(texts *statements, settings []int64, holders map[rowKey]int64) []*Statement {
	var all []*Statement
	var apart []*group
	for _, pass := range p.passes {
		for _, g := range pass {
			code := g.statement.Code
			if !sqlstate.IsAboutEntry(code) || len(g.entries) < 2 && (g.alone || code != sqlstate.LockNotAvailable) {
				continue
			}
			locked := 0
			if code == sqlstate.LockNotAvailable {
				for _, e := range g.entries {
					if holders[e.id] != 0 {
						e.err = errLocked
						locked++
					}
				}
			}
			var rest *group
			for _, e := range g.entries {
				if e.err != nil {
					continue
				}
				if rest == nil || locked == 0 {
					rest = nextGroup(p, g.statementKey)
					rest.alone = locked == 0
					apart = append(apart, rest)
				}
				e.waited = false
				rest.entries = append(rest.entries, e)
			}
			g.entries = g.entries[:0]
			g.statement = Statement{}
		}
	}
	for _, g := range apart {
		g.write(texts, settings)
		all = g.appendTo(all)
	}
	if len(apart) > 0 {
		p.passes = append(p.passes, apart)
	}
	return all
}

// decidePostponed decides the requests on locked rows, each by itself.
func (d *decision) decidePostponed() {
	postponed := d.postponed
	d.postponed = nil
	for _, r := range postponed {
		for !r.finished {
			if holds, _ := d.engine.locks.holds(r, lockWait(batch.Timeout(d.queue)), nil); holds {
				d.finish([]*request{r}, errLocked)
				break
			}
			before := holderOf(r, d.holders)
			d.forgetHolders(r)
			d.decideOnly(r)
			if r.finished {
				break
			}
			// It waited for a lock again, and was postponed again.
			d.postponed = nil
			if after := holderOf(r, d.holders); after != 0 && after == before {
				d.rememberLocked(after)
			}
		}
	}
}

// decideOnly decides one request by itself. It postpones the request if its row is locked.
func (d *decision) decideOnly(r *request) {
	p := newPlan()
	defer p.free()
	if alone, _ := split([]*request{r}); len(alone) > 0 {
		addRequests(p, alone)
		if err := d.execute(p.write(d.engine.texts, d.settings)); err != nil {
			d.fail(alone, err)
			return
		}
		d.finishAlone(p, alone)
		return
	}
	transactions := d.firstTransactions([]*request{r})
	for len(transactions) > 0 {
		t := transactions[0]
		if err := d.execute(t.write()); err != nil {
			d.fail(t.requests, err)
			return
		}
		transactions = t.finish()
	}
}
