package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// engine is what decides batches. Its parts guard themselves.
type engine struct {
	server  *server
	tables  *tables
	cleaner *cleaner
	texts   *statements
	rows    *lease.Set       // what is remembered of rows
	learns  Rows             // learns the rows of decisions; may be nil
	now     func() time.Time // Options.Now
	counts  *counts

	background *batch.Background
	settleWait time.Duration // defaultSettleWait; tests change it
	slots      *slots.Slots
}

// dispatch is the work on one batch. The worker owns it.
type dispatch struct {
	engine   *engine
	queue    *batch.Queue
	ctx      context.Context // ends at the batch's deadline; a statement has the queue's timeout
	sequence int64           // the batch's number, see lease.Begin
	sent     int64           // the time of lease.Now before the first statement was sent
	settings []int64         // the first parameter of statements, see clockSQL
	requests []*request
	several  bool // a request has several hits
	patient  bool // the batch had more than a timeout: the database answered when it began

	// not yet in the counts. It is added before callers go on, since they may read the counts
	stats     tally
	finishing []*batch.Call // memory for finishSingles
	memory    []*request    // for requests
}

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
	if !Ready(d.engine.tables.setup) {
		ctx, cancel := context.WithTimeout(d.ctx, d.queue.Timeout)
		err := d.engine.tables.setup.Await(ctx)
		cancel()
		if err != nil {
			d.fail(d.requests, err)
			return
		}
	}
	requests := d.requests
	if lease.AnyLocks(d.engine.rows) {
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

// dispatches are free for the next batch.
var dispatches = sync.Pool{New: func() any { return &dispatch{} }}

// newDispatch returns the work on a batch. It ends with end.
func newDispatch(ctx context.Context, e *engine, q *batch.Queue, calls []*batch.Call) *dispatch {
	d := dispatches.Get().(*dispatch)
	d.engine = e
	d.queue = q
	d.ctx = ctx
	d.sequence = lease.Begin(e.rows)
	d.sent = lease.Now(e.rows)
	d.stats = tally{Batches: 1, Requests: int64(len(calls))}
	wait := (q.Timeout / lockShare).Milliseconds()
	if wait < 1 {
		wait = 1 // 0 would be no bound
	}
	d.settings = []int64{0, wait}
	if e.now != nil {
		d.settings[0] = e.now().UnixMicro()
	}
	if deadline, ok := ctx.Deadline(); ok {
		d.patient = deadline.Sub(calls[0].Arrived) > q.Timeout
	}
	for len(d.memory) < len(calls) {
		d.memory = append(d.memory, &request{})
	}
	d.requests = d.memory[:len(calls)]
	d.several = false
	for i, c := range calls {
		r := d.requests[i]
		r.call = c
		r.finished = false
		if len(c.Hits) > 1 {
			d.several = true
		}
	}
	return d
}

// execute runs statements, and reports whether one of them has failed. entered are the slots that they
// charge.
func (d *dispatch) execute(statements []*pgdb.Statement, entered []slots.Range) (bool, error) {
	d.stats.Statements += int64(len(statements))
	failed, err := d.engine.server.run(d.ctx, d.queue.Timeout, statements)
	if err != nil && len(entered) > 0 {
		d.engine.slots.LeaveUnsure(entered)
	}
	if err != nil || !failed {
		return failed, err
	}
	for _, s := range statements {
		if pg.IsMissingTable(s.Code) {
			d.engine.tables.missing()
			break
		}
	}
	return true, nil
}

// clearRefunded forgets the known refusals of rows to which a request gave quota back, or may have.
func (d *dispatch) clearRefunded(r *request) {
	c := r.call
	for i := range c.Hits {
		if c.Reset || c.Hits[i].Cost < 0 {
			lease.Clear(d.engine.rows, rowOf(&c.Hits[i]))
			if c.Order == batch.With {
				lease.Drop(d.engine.rows, rowOf(&c.Hits[i])) // another batch may have charged units meanwhile
			}
		}
	}
}

// finish ends the wait of requests, with their decisions or with an error.
func (d *dispatch) finish(requests []*request, err error) {
	if len(requests) == 0 {
		return
	}
	var calls []*batch.Call
	for _, r := range requests {
		r.finished = true
		calls = append(calls, r.call)
	}
	d.engine.counts.add(&d.stats)
	if err != nil {
		d.engine.failCalls(d.queue, calls, err)
		return
	}
	batch.Finish(d.queue, calls, nil)
}

// fail ends the wait of the requests that are not decided, with an error.
func (d *dispatch) fail(requests []*request, err error) {
	d.stats.Failures++
	d.engine.counts.add(&d.stats)
	var calls, background []*batch.Call
	for _, r := range requests {
		if !r.finished {
			r.finished = true
			d.clearRefunded(r)
			if r.call.Order == batch.With {
				calls = append(calls, r.call)
			} else {
				background = append(background, r.call)
			}
		}
	}
	batch.Finish(d.queue, background, err)
	d.engine.failCalls(d.queue, calls, d.noDecision(err))
}

// noDecision is the error of calls whose batch failed with err. A batch that had no connection all the time,
// because others used all of them, has passed its deadline.
func (d *dispatch) noDecision(err error) error {
	passed := d.patient && (d.ctx.Err() != nil || errors.Is(err, pg.ErrNoTurn))
	return d.engine.server.health.NoDecision(err, passed)
}

// errUndecided is the error of a request that a batch has left undecided.
var errUndecided = errors.New("ratelimit/postgres: the request was not decided")

// end ends the wait of all requests that are left, after a panic, and makes the dispatch
// free for the next batch.
func (d *dispatch) end(err error) {
	if err == nil {
		err = errUndecided
	}
	for _, r := range d.requests {
		if !r.finished {
			r.finished = true
			d.leaveEntered(r)
			batch.Finish(d.queue, []*batch.Call{r.call}, err)
		}
		r.call = nil
		r.positions = r.positions[:0] // what they point to belongs to other batches
	}
	d.engine.counts.add(&d.stats)
	d.engine = nil
	d.queue = nil
	dispatches.Put(d)
}
