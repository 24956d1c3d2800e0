package engine

import (
	"context"
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// work decides the calls of one batch. The worker of the batch owns it.
type work struct {
	store      *Store
	queue      *batch.Queue
	ctx        context.Context // ends at the batch's deadline; each statement has the queue's timeout
	sequence   int64           // the batch's number, see lease.NextSequence
	sent       int64           // the time of lease.Now before the first statement was sent
	settings   []int64         // the first parameter of statements, see clockSQL
	requests   []*request
	hasSeveral bool // a request has several hits
	answering  bool // the batch began with more than a timeout: the database was answering
	timedOut   bool // a statement reached its lock timeout
}

// decide decides the calls of a batch.
func (s *Store) decide(q *batch.Queue, calls []*batch.Call, deadline time.Time) {
	began := time.Now()
	addValue(s.stats, Waits, began.Sub(calls[0].Arrived).Microseconds()) // the oldest call's wait
	addValue(s.stats, Sizes, int64(len(calls)))
	count(s.stats, Batches, 1)
	count(s.stats, Requests, int64(len(calls)))
	decideCalls(s, q, batch.Split(calls), deadline, decideRequests)
	addValue(s.stats, Times, time.Since(began).Microseconds())
}

// errUndecided is the error of a request that its batch did not decide.
var errUndecided = errors.New("ratelimit/postgres: the request was not decided")

// decideCalls runs decide with the work for calls. It finishes the calls that decide leaves, even if decide
// panics.
func decideCalls(s *Store, q *batch.Queue, calls []*batch.Call, deadline time.Time, decide func(w *work)) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	wait := (q.Timeout / lockShare).Milliseconds()
	if wait < 1 {
		wait = 1 // 0 would be no bound
	}
	w := &work{store: s, queue: q, ctx: ctx, sequence: lease.NextSequence(s.rows), sent: lease.Now(s.rows),
		settings: []int64{0, wait}, answering: deadline.Sub(calls[0].Arrived) > q.Timeout}
	if s.now != nil {
		w.settings[0] = s.now().UnixMicro()
	}
	requests := make([]request, len(calls))
	for i, c := range calls {
		requests[i].call = c
		w.requests = append(w.requests, &requests[i])
		w.hasSeveral = w.hasSeveral || len(c.Hits) > 1
	}
	err := batch.PanicError(func() { decide(w) })
	if err == nil {
		err = errUndecided
	}
	for _, r := range w.requests {
		if !r.finished {
			w.releaseUncertain(r)
			batch.Finish(q, []*batch.Call{r.call}, err)
		}
	}
}

// decideRequests decides and finishes the requests of a batch.
func decideRequests(w *work) {
	if !SetupDone(w.store.tables.setup) {
		ctx, cancel := context.WithTimeout(w.ctx, w.queue.Timeout)
		err := w.store.tables.setup.Await(ctx)
		cancel()
		if err != nil {
			w.fail(err)
			return
		}
	}
	requests := w.requests
	if lease.AnyLocks(w.store.rows) {
		requests = w.refuseLocked(requests)
	}
	again, err := w.decideRound(requests, w.settings, false)
	if err == nil && len(again) > 0 {
		settings := divideWait(w.settings, int64(len(again)))
		if w.timedOut { // a row of a statement was locked: most rows are free
			settings[1] = 1
		}
		again, err = w.decideRound(again, settings, true)
	}
	if err != nil {
		w.fail(err)
		return
	}
	w.wait(again)
}

// execute runs statements and reports whether any of them failed. allocated are the slots that they may take.
func (w *work) execute(statements []*pgdb.Statement, allocated []slotRange) (bool, error) {
	count(w.store.stats, Statements, int64(len(statements)))
	failed, err := w.store.server.run(w.ctx, w.queue.Timeout, statements)
	if err != nil && len(allocated) > 0 {
		w.store.slots.ReleaseUncertain(allocated)
	}
	if err != nil || !failed {
		return failed, err
	}
	for _, s := range statements {
		if pg.IsMissingTable(s.Code) {
			w.store.tables.missing()
			break
		}
	}
	return true, nil
}

// clearRefunded clears the remembered refusals and the leases of the rows that a request refunds or resets.
// The refund may or may not have taken effect.
func (w *work) clearRefunded(r *request) {
	c := r.call
	for i := range c.Hits {
		if c.Reset || c.Hits[i].Cost < 0 {
			lease.ClearRefusal(w.store.rows, rowOf(&c.Hits[i]))
			if c.Order == batch.With {
				// Another batch may have charged units meanwhile.
				lease.EndLease(w.store.rows, rowOf(&c.Hits[i]))
			}
		}
	}
}

// finish finishes requests, with their decisions if err is nil, unless they are finished already. A
// remembered refusal replaces err.
func (w *work) finish(requests []*request, err error) {
	var calls, background []*batch.Call
	for _, r := range requests {
		switch {
		case r.finished:
		case r.call.Order == batch.With:
			calls = append(calls, r.call)
		default:
			background = append(background, r.call)
		}
		r.finished = true
	}
	batch.Finish(w.queue, background, err)
	if err != nil {
		w.store.failCalls(w.queue, calls, err)
		return
	}
	batch.Finish(w.queue, calls, nil)
}

// fail finishes the unfinished requests of a batch that failed with err.
func (w *work) fail(err error) {
	count(w.store.stats, Failures, 1)
	for _, r := range w.requests {
		if !r.finished {
			w.clearRefunded(r)
		}
	}
	w.finish(w.requests, w.noDecision(err))
}

// noDecision returns the error for the calls of a batch that failed with err. A batch that got no connection,
// because others used all of them, counts as late.
func (w *work) noDecision(err error) error {
	passed := w.answering && (w.ctx.Err() != nil || errors.Is(err, pg.ErrNoTurn))
	return w.store.server.health.NoDecision(err, passed)
}
