package batch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Queue collects calls into batches and passes the batches to a Decider. The type worker describes how
// batches form. NewQueue makes a Queue.
type Queue struct {
	Options // does not change
	decider Decider

	mu              sync.Mutex // guards the fields below
	pending         []*Call    // in the order of Send
	collecting      bool       // a worker collects the pending calls next
	running         int        // the number of running workers
	batchesInFlight int        // the number of batches in flight
	pace            pace

	idleWorkers sync.Pool // to reuse their memory
}

// worker forms batches: it collects the pending calls and passes them to the Decider, until no calls
// are left. Only one worker at a time is the collecting one, and Queue.collecting is set while there is one.
// If the batch of the collecting worker is slow, another worker becomes the collecting one, and the first
// worker ends after its batch. At most Options.Workers run concurrently.
type worker struct {
	calls  []*Call // memory for a batch
	sample sample  // of the batch

	// Guarded by the queue's mutex.
	slowTimer *time.Timer // runs replaceSlowWorker
	inFlight  bool
	replaced  bool // another worker has become the collecting one
}

// Options configure a Queue.
type Options struct {
	// Timeout bounds the time that the database takes for a statement. A call waits for its decision for up
	// to health.Health.Patience, which is four timeouts while the server answers. It may wait for three of
	// them to join a batch.
	Timeout time.Duration

	// Health tracks the server.
	Health *health.Health

	// Workers bounds the number of concurrent batches.
	Workers int

	// Fill, unless it is nil, sets Hits and HasIndependent of calls that were just collected, and clears
	// their Decisions and Err, or sets the Err of one that ends. Until then, a call counts as one hit.
	// Deliver, unless it is nil, is called with finished calls before their callers continue. If one of them
	// panics, it is called again with one call at a time, and the calls with which it panics again fail.
	Fill, Deliver func(calls []*Call)
}

// Decider decides the calls of a Queue.
type Decider interface {
	// DecideBatch decides the calls of a batch by deadline, the deadline of the oldest call. It passes each
	// call to Finish exactly once, and must not panic.
	DecideBatch(calls []*Call, deadline time.Time)

	// Expire finishes calls that have too little time left for a batch, with err or an error of its own.
	Expire(calls []*Call, err error)
}

// NewQueue returns an empty Queue. It runs goroutines only while it has calls.
func NewQueue(o Options, d Decider) *Queue {
	q := &Queue{Options: o, decider: d, pace: pace{maxHits: startHits}}
	q.idleWorkers.New = func() any { return &worker{} }
	return q
}

// Send adds a call to the queue; Wait must follow. arrived is the time from which the deadline of the call
// counts, which is in the past if the call has waited before.
func Send(q *Queue, c *Call, arrived time.Time) {
	c.Arrived = arrived
	q.mu.Lock()
	q.pending = append(q.pending, c)
	start := !q.collecting
	if start {
		q.collecting = true
		q.running++
	}
	q.mu.Unlock()
	if start {
		go runWorker(q)
	}
}

// Wait waits until a sent call is finished.
func Wait(c *Call) { <-c.done }

// Enter sends a call, waits until it is finished or ctx ends, and returns Err and whether the caller may
// reuse the call. arrived is as in Send. If ctx ends first, the error is that of Health.Ended, and the call
// stays in its batch, which may still change it: its hits may or may not be charged.
func Enter(ctx context.Context, q *Queue, c *Call, arrived time.Time) (bool, error) {
	c.cancelable = ctx.Done() != nil
	if !c.cancelable {
		Send(q, c, arrived)
		<-c.done
		return true, c.Err
	}
	var ended error
	stop := context.AfterFunc(ctx, func() {
		if atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
			ended = q.Health.Ended(ctx)
			c.done <- struct{}{}
		}
	})
	Send(q, c, arrived)
	<-c.done
	if ended != nil {
		return false, ended
	}
	return stop(), c.Err
}

// Busy reports whether a worker of q runs.
func Busy(q *Queue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running > 0
}

// slowBatch, and slowHit for each hit after the first, are the time in flight after which another worker
// collects the next batch, so that one slow statement does not delay all calls. On a busy server, more
// batches at once would only be smaller, and wait for each other's rows.
const (
	slowBatch = 5 * time.Millisecond
	slowHit   = 500 * time.Microsecond
)

// runWorker runs batches until no calls are left, or another worker collects. The caller has counted the
// worker as running. A panic must not leave this goroutine: in a plugin it would end the proxy.
func runWorker(q *Queue) {
	w := q.idleWorkers.Get().(*worker)
	for replaced := false; !replaced; {
		runtime.Gosched() // let callers that are about to send join this batch
		patience := q.Health.Patience(q.Timeout)
		calls, expired := collect(q, w, patience)
		if len(expired) > 0 {
			late := q.Health.NoDecision(ratelimit.ErrTimeout, patience > q.Timeout)
			if filled := fillCalls(q, expired); len(filled) > 0 {
				q.decider.Expire(filled, late)
			}
		}
		if len(calls) == 0 {
			if len(expired) == 0 {
				break
			}
			continue
		}
		started := time.Now()
		deadline := calls[0].Arrived.Add(patience)
		if calls = fillCalls(q, calls); len(calls) > 0 {
			q.decider.DecideBatch(calls, deadline)
		}
		now := time.Now()
		q.mu.Lock()
		w.inFlight = false
		w.slowTimer.Stop()
		q.batchesInFlight--
		w.sample.took = now.Sub(started)
		w.sample.late = w.sample.took >= q.Timeout || !now.Before(deadline)
		q.pace.update(w.sample, q.Timeout, q.Workers)
		replaced = w.replaced
		q.mu.Unlock()
	}
	q.mu.Lock()
	q.running--
	w.replaced = false
	q.mu.Unlock()
	q.idleWorkers.Put(w)
}

// collect removes the pending calls of the next batch, and expired calls, which have too little time left for
// a batch. It returns both in the order of Send. Expired calls must not join a batch, because a batch with
// their deadline would end too early for all of its calls. If no calls are pending, no worker collects until
// the next call. patience is the result of Health.Patience.
func collect(q *Queue, w *worker, patience time.Duration) ([]*Call, []*Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	pending := q.pending
	if len(pending) == 0 {
		q.collecting = false
		return nil, nil
	}
	maxWait := patience - q.Timeout // leaves a timeout for the batch
	if maxWait == 0 {
		// While the server is silent, it leaves somewhat more than the time that recent batches took. A call
		// that has waited for at most a fifth of its timeout always joins, because otherwise no batch might
		// follow a slow one, and batchTime could not fall.
		maxWait = q.Timeout - q.pace.batchTime*5/4
		if maxWait < q.Timeout/5 {
			maxWait = q.Timeout / 5
		}
	}
	oldest := time.Now().Add(-maxWait)
	late := 0
	for late < len(pending) && pending[late].Arrived.Before(oldest) {
		late++
	}
	expired := append([]*Call(nil), pending[:late]...)
	end := late
	hits := 0
	for end < len(pending) && hits < q.pace.maxHits {
		if q.Fill != nil {
			hits++
		} else {
			hits += len(pending[end].Hits)
		}
		end++
	}
	if late == 0 && end == len(pending) {
		q.pending = w.calls[:0] // the usual case copies nothing
		w.calls = pending
	} else {
		w.calls = append(w.calls[:0], pending[late:end]...)
		n := copy(pending, pending[end:])
		for i := n; i < len(pending); i++ {
			pending[i] = nil
		}
		q.pending = pending[:n]
	}
	if len(w.calls) == 0 {
		return nil, expired
	}
	w.inFlight = true
	w.sample = sample{hits: hits, maxHits: q.pace.maxHits, alone: q.batchesInFlight == 0}
	q.batchesInFlight++
	slow := slowBatch + time.Duration(hits-1)*slowHit
	if most := q.Timeout / 10; slow > most {
		slow = most
	}
	if slow < slowBatch {
		slow = slowBatch
	}
	if w.slowTimer == nil {
		w.slowTimer = time.AfterFunc(slow, func() { replaceSlowWorker(q, w) })
	} else {
		w.slowTimer.Reset(slow)
	}
	return w.calls, expired
}

// replaceSlowWorker runs when the batch of w is slow. It starts another worker, which becomes the collecting
// one, or runs again later if Options.Workers are running.
func replaceSlowWorker(q *Queue, w *worker) {
	q.mu.Lock()
	start := w.inFlight && !w.replaced && q.running < q.Workers
	if start {
		w.replaced = true
		q.running++
	} else if w.inFlight && !w.replaced {
		w.slowTimer.Reset(slowBatch)
	}
	q.mu.Unlock()
	if start {
		runWorker(q)
	}
}

// fillCalls sets the hits of calls by Options.Fill, unless that is nil. It finishes the calls with an
// Err, and returns the others.
func fillCalls(q *Queue, calls []*Call) []*Call {
	if q.Fill == nil {
		return calls
	}
	callEach(q.Fill, calls)
	var failed []*Call
	n := 0
	for _, c := range calls {
		if c.Err != nil {
			failed = append(failed, c)
			continue
		}
		calls[n] = c
		n++
	}
	if failed != nil {
		Finish(q, failed, nil)
	}
	return calls[:n]
}

const (
	// startHits bounds the hits of the first batches, so that a slow server can decide the batches of all
	// workers within a timeout. After that the bound adapts:
	//   - It grows to usualHits, and further to ceilingHits while a full batch takes hardly longer than a
	//     small one, because then the latency of the connection is the time of a batch, and more hits cost
	//     nothing.
	//   - It falls, down to floorHits, while full batches take too much of the timeout.
	//
	// The last call of a batch may exceed the bound.
	floorHits   = 8
	startHits   = 100
	usualHits   = 400
	ceilingHits = 4000

	// smallBatch is the size, in hits, up to which a slower batch raises the measured latency.
	smallBatch = 100
)

// pace adapts the size of batches to the time that they take. The queue's mutex guards it.
type pace struct {
	batchTime   time.Duration // a moving average of the time of batches
	latency     time.Duration // the time of the fastest batches; 0 if unknown
	maxHits     int           // the bound on the hits of the next batch
	fullBatches int           // the number of batches that reached maxHits since it was set
}

// sample describes a finished batch.
type sample struct {
	took    time.Duration
	late    bool // took is a timeout or more, or the deadline has passed
	hits    int
	maxHits int  // pace.maxHits when the batch was collected
	alone   bool // no other batch was in flight then
}

// update adapts the pace after a batch.
func (p *pace) update(s sample, timeout time.Duration, workers int) {
	if s.took > p.batchTime {
		p.batchTime = (p.batchTime + s.took) / 2
	} else {
		p.batchTime = (3*p.batchTime + s.took) / 4
	}
	if !s.late {
		switch {
		case p.latency == 0 || s.took < p.latency:
			p.latency = s.took // batches cannot be faster than the connection
		case s.alone && s.hits <= smallBatch && s.hits <= s.maxHits/4 || s.maxHits == floorHits:
			// The hits of a small batch do not explain this time, and at the floor none is smaller.
			p.latency = (7*p.latency + s.took) / 8
		}
	}
	if s.maxHits != p.maxHits {
		return // the bound has changed since
	}
	// A request can take two round trips, which does not mean that the server is busy.
	slow := s.took > timeout/4 && s.took > p.latency*5/2
	switch {
	case slow && s.late:
		p.setMaxHits(p.maxHits / 2)
	case s.late || s.hits < s.maxHits:
	case slow:
		p.setMaxHits(p.maxHits * 3 / 4)
	case p.fullBatches < workers-1: // the batches beside this one had fewer hits
		p.fullBatches++
	case s.took <= p.latency*3/2 || p.maxHits < usualHits && s.took < timeout/8:
		p.setMaxHits(p.maxHits * 3 / 2)
	case p.maxHits > usualHits:
		hits := p.maxHits * 3 / 4
		if hits < usualHits {
			hits = usualHits
		}
		p.setMaxHits(hits)
	}
}

// setMaxHits sets maxHits within its bounds.
func (p *pace) setMaxHits(hits int) {
	if hits < floorHits {
		hits = floorHits
	}
	if hits > ceilingHits {
		hits = ceilingHits
	}
	p.maxHits = hits
	p.fullBatches = 0
}
