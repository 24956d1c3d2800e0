package engine

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// work decides the calls of one batch. The worker of the batch owns it.
type work struct {
	*decider
	ctx        context.Context // ends at the batch's deadline; each statement has the queue's timeout
	sequence   int64           // the batch's number, see lease.Set.Sequence
	sent       int64           // the time of lease.Now before the first statement was sent
	now        int64           // Options.Now in Unix microseconds; 0 is the clock of the server
	lockWait   time.Duration   // the lock timeout of a statement; a round may have less
	requests   []*request
	jobs       []*job // those of the present round
	buffers    *buffers
	names      []int64 // the names for which the batch reserves, see ledger.Acquire
	hasSeveral bool    // a request has several hits
	hasRefunds bool    // a request refunds or resets rows
	keepsRows  bool    // the engine remembers all rows, see lease.Set.Local
	// extended means that the batch's deadline is more than one timeout after the arrival of its oldest call.
	// The queue sets such a deadline only while the database answers.
	extended bool
	timedOut bool // a statement reached its lock timeout
	cleans   bool // a cleanup follows
}

// buffers is the memory of the requests and entries of a batch. A later batch reuses it.
type buffers struct {
	requests []request
	entries  []entry
}

// errUndecided is the error of a request that its batch did not decide.
var errUndecided = errors.New("ratelimit/postgres: the request was not decided")

// decideInDatabase decides and finishes the calls of a batch.
func decideInDatabase(d *decider, calls []*batch.Call, deadline time.Time) {
	e := d.engine
	start := time.Now()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	side := d.isSide() // see locks.go
	w := &work{decider: d, ctx: ctx,
		sequence: atomic.AddInt64(&e.rows.Sequence, 1), sent: lease.Now(e.rows),
		lockWait: d.queue.Timeout / lockShare, extended: deadline.Sub(calls[0].Arrived) > d.queue.Timeout,
		keepsRows: atomic.LoadInt32(&e.rows.Local) == 1, now: e.unixNow()}
	if !side {
		addValue(e.stats, Waits, start.Sub(calls[0].Arrived).Microseconds()) // the oldest call's wait
		addValue(e.stats, Sizes, int64(len(calls)))
		atomic.AddInt64(&e.stats[Batches], 1)
		atomic.AddInt64(&e.stats[Requests], int64(len(calls)))
	}
	for _, c := range calls {
		if c.HasIndependent {
			calls = batch.Split(calls) // each Independent hit is decided by itself
			break
		}
	}
	w.begin(calls)
	err := batch.Try(func() error {
		if side {
			return w.decideLocked()
		}
		return w.decideRequests()
	})
	if err == nil {
		err = errUndecided // for requests that the rounds have left out
	} else {
		atomic.AddInt64(&e.stats[Failures], 1)
		err = w.noDecision(err)
	}
	w.fail(err)
	w.end()
	if !side {
		addValue(e.stats, Times, time.Since(start).Microseconds())
	}
}

// begin makes the requests of a batch, in the buffers of an earlier batch. It ends the leases of rows that a
// request refunds or resets.
func (w *work) begin(calls []*batch.Call) {
	b := w.engine.idleBuffers.Get().(*buffers)
	w.buffers = b
	if cap(b.requests) < len(calls) {
		b.requests = make([]request, len(calls))
	}
	b.requests = b.requests[:len(calls)]
	w.requests = make([]*request, len(calls))
	cleaner := &w.engine.cleaner
	w.cleans = cleaner.random() < cleaner.probability
	for i, c := range calls {
		r := &b.requests[i]
		*r = request{Call: c, positions: r.positions[:0]}
		w.requests[i] = r
		w.hasSeveral = w.hasSeveral || len(c.Hits) > 1
		for j := range c.Hits {
			if w.cleans {
				cleaner.counted.Store(rowOf(&c.Hits[j]).Prefix, true)
			}
			if c.Reset || c.Hits[j].Cost < 0 {
				w.hasRefunds = true
				lease.EndLease(w.engine.rows, rowOf(&c.Hits[j])) // its units are refunded first
			}
		}
	}
}

// end passes the buffers of a finished batch on to a later one, and lets its names end.
func (w *work) end() {
	if w.names != nil {
		w.engine.ledger.Leave(w.names)
	}
	b := w.buffers
	for i := range b.entries {
		b.entries[i].id.Key = "" // it may be a part of a long request
	}
	b.entries = b.entries[:0]
	w.engine.idleBuffers.Put(b)
}

// addValue adds a value to the histogram that begins at first.
func addValue(s Stats, first int, value int64) {
	bucket := 0
	if value > 1 {
		bucket = bits.Len64(uint64(value - 1))
	}
	if bucket > HistogramSize-2 {
		bucket = HistogramSize - 2
	}
	atomic.AddInt64(&s[first+bucket], 1)
	atomic.AddInt64(&s[first+HistogramSize-1], value)
}

// decideRequests decides and finishes the requests of a batch. It returns the error of the requests that it
// leaves undecided.
func (w *work) decideRequests() error {
	if !w.engine.Ready() {
		if err := w.engine.Await(w.ctx, w.queue.Timeout); err != nil {
			return err
		}
	}
	requests := w.requests
	if atomic.LoadInt64(&w.engine.rows.LockCount) > 0 {
		requests = w.refuseLocked(requests)
	}
	toRepeat, err := w.decideRound(requests, w.lockWait, false)
	if err == nil && len(toRepeat) > 0 {
		wait := w.lockWait / time.Duration(len(toRepeat))
		if w.timedOut {
			wait = 0 // one locked row has failed a whole statement, and most rows are free
		}
		toRepeat, err = w.decideRound(toRepeat, wait, true)
		if err == nil && len(toRepeat) > 0 {
			w.enterSide(toRepeat)
		}
	}
	return err
}

// fail finishes the unfinished requests and jobs of a batch with err. Their statements may have taken effect.
func (w *work) fail(err error) {
	var unfinished []*request
	for _, r := range w.requests {
		if !r.finished {
			w.clearRefunded(r)
			w.releaseUncertain(r)
			unfinished = append(unfinished, r)
		}
	}
	if unfinished != nil {
		w.finish(unfinished, err)
	}
	if len(w.jobs) > 0 {
		w.endJobs(err)
	}
}
