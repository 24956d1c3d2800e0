package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// decide decides the calls of a batch. It is batch.Options.Decide, so it finishes each call
// once, also if something panics.
func (e *engine) decide(q *batch.Queue, calls []*batch.Call, deadline time.Time) {
	began := time.Now()
	wait := began.Sub(calls[0].Arrived) // of the call that came first
	size := len(calls)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	d := newDispatch(ctx, e, q, batch.Split(calls))
	d.stats.Requests = int64(len(calls))
	err := batch.PanicError(func() { run(d) })
	d.end(err)
	addBatch(e.counts, size, wait, time.Since(began))
}

// run decides the requests, and finishes those that are decided. end finishes the others.
func run(d *dispatch) {
	if atomic.LoadInt32(&d.engine.tables.ready) == 0 {
		ctx, cancel := context.WithTimeout(d.ctx, d.queue.Timeout)
		err := d.engine.tables.wait(ctx)
		cancel()
		if err != nil {
			d.fail(d.requests, err)
			return
		}
	}
	if atomic.LoadInt32(&d.engine.tables.elsewhere) != 0 { // they were found when the time was over
		d.fail(d.requests, ratelimit.ErrTimeout)
		return
	}
	requests := d.requests
	if atomic.LoadInt32(&d.engine.locks.any) != 0 {
		requests = d.refuseLocked(requests)
	}
	waiting, err := d.decideRound(requests, d.settings, false)
	if err == nil && len(waiting) > 0 { // one row of a statement was locked: the others are free
		waiting, err = d.decideRound(waiting, []int64{d.settings[0], 1}, true)
	}
	if err != nil {
		d.fail(d.requests, err)
		return
	}
	if len(waiting) > 0 {
		d.wait(waiting)
	}
}

// decideRound decides requests in one round trip, or a few, and finishes those that are decided. It returns those
// that have waited for a lock in vain.
func (d *dispatch) decideRound(requests []*request, settings []int64, oneByOne bool) ([]*request, error) {
	r := d.planRound(requests, settings, oneByOne)
	statements := r.plan.write(d.engine.texts, settings)
	entered := r.plan.entered
	if len(r.transactions) > 0 {
		statements, entered = writeAll(r.transactions, statements, entered)
	}
	if r.last != r.plan {
		statements = append(statements, r.last.write(d.engine.texts, settings)...)
	}
	failed, err := d.execute(statements, entered)
	return d.apply(r, failed, err)
}

// refuseKnown refuses the requests of several hits that are known not to fit since they
// entered the queue, and returns the others: a request that cannot pass would make its
// transaction fail.
func (d *dispatch) refuseKnown(requests []*request) []*request {
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
				d.engine.blocked.Remember(e.id, &e.view, h.Cost, c.Decisions[i].RetryAfter, d.sequence,
					d.engine.believed(h.Limit))
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
