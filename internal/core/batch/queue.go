package batch

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
)

// Queue collects calls in batches and has them decided. The type worker describes how batches form.
// Create one with NewQueue.
type Queue struct {
	Timeout    time.Duration // Options.Timeout; does not change
	health     *health.Health
	maxWorkers int
	decide     func(calls []*Call, deadline time.Time)
	expire     func(calls []*Call)
	fill       func(calls []*Call)
	deliver    func(calls []*Call)
	background *Background

	mu         sync.Mutex // guards the fields below
	pending    []*Call    // in the order of arrival
	collecting bool       // a worker is about to collect the pending calls
	running    int        // the number of running workers
	inFlight   int        // the number of batches in flight
	sent       int        // the number of calls in these batches
	free       []*worker  // idle workers, to reuse their memory
	pace       pace
	beside     any // nil, or the *Queue of Beside: Yaegi does not support a type that contains itself
}

// worker forms batches: it collects the pending calls, decides them with Queue.decide, and repeats
// both until no calls are left. At most one worker at a time is the collecting one; Queue.collecting
// is true while there is one. If its batch is in flight for longer than patience, another worker
// becomes the collecting one, up to Options.Workers, and the first ends after its batch.
type worker struct {
	calls  []*Call // memory for a batch
	sample sample  // of the batch

	// Guarded by the queue's mutex.
	watch    *time.Timer // runs overdue
	inFlight bool
	replaced bool // another worker collects now
}

// Options configure a Queue.
type Options struct {
	// Timeout bounds the time that the database takes for a statement. A call waits for its decision as long
	// as health.Patience allows, and for its batch a timeout less.
	Timeout time.Duration

	// Health is the health of the server. Nil means a server that always answers.
	Health *health.Health

	// Workers bounds the number of batches in flight at once.
	Workers int

	// Decide decides the calls of a batch before the deadline of the call that came first. It ends the
	// wait of each call with Finish, exactly once, and must not panic.
	Decide func(calls []*Call, deadline time.Time)

	// Expire ends, with Finish, the wait of calls that have too little time left for a batch. Nil
	// finishes them with the error of health.NoDecision.
	Expire func(calls []*Call)

	// Fill sets the Hits of calls that were just collected, and Apart, and clears their Decisions and Err.
	// Deliver gets calls that are finished, before their callers continue. If one of them panics, it is
	// called again with one call after the other, and the calls with which it panics again fail. Nil does
	// nothing.
	Fill    func(calls []*Call)
	Deliver func(calls []*Call)

	// Background gets the calls that nobody waits for after Finish. Nil is for a queue without such calls.
	Background *Background
}

// NewQueue returns a Queue. It has goroutines only while there are calls.
func NewQueue(o Options) *Queue {
	if o.Health == nil {
		o.Health = health.New(context.Background(), nil, nil)
	}
	return &Queue{pace: pace{maxHits: startHits}, Timeout: o.Timeout, health: o.Health, maxWorkers: o.Workers,
		decide: o.Decide, expire: o.Expire, fill: o.Fill, deliver: o.Deliver, background: o.Background}
}

// Send adds a call to the queue. Wait must follow. arrived is the current time, or an earlier one for a
// call that another queue passes on to q, which then finishes it.
func Send(q *Queue, c *Call, arrived time.Time) {
	c.Arrived = arrived
	q.mu.Lock()
	q.pending = append(q.pending, c)
	start := !q.collecting
	q.collecting = true
	q.mu.Unlock()
	if start {
		go startWorker(q)
	}
}

// Beside returns the queue beside q, for calls that must not delay the others. At most one batch of
// them is in flight. decide and expire are as in Options. The first call of Beside creates the queue;
// later calls ignore their arguments.
func Beside(q *Queue, decide func(calls []*Call, deadline time.Time), expire func(calls []*Call)) *Queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	if beside, ok := q.beside.(*Queue); ok {
		return beside
	}
	made := NewQueue(Options{
		Timeout: q.Timeout, Health: q.health, Workers: 1, Decide: decide, Expire: expire, Deliver: q.deliver,
	})
	q.beside = made
	return made
}

// Wait waits until a sent call is finished.
func Wait(c *Call) { <-c.done }

// Enter sends a call and waits for it.
func Enter(q *Queue, c *Call) {
	Send(q, c, time.Now())
	<-c.done
}

// Waiting returns the number of calls that are pending or in flight, in q and beside it.
func Waiting(q *Queue) int {
	q.mu.Lock()
	n := len(q.pending) + q.sent
	beside, ok := q.beside.(*Queue)
	q.mu.Unlock()
	if ok {
		n += Waiting(beside)
	}
	return n
}

// Busy reports whether a worker runs or is about to start, for q or the queue beside it.
func Busy(q *Queue) bool {
	q.mu.Lock()
	busy := q.running > 0 || q.collecting
	beside, ok := q.beside.(*Queue)
	q.mu.Unlock()
	return busy || ok && Busy(beside)
}

// RoundDown keeps the three highest bits of a duration, so that there are few different results.
func RoundDown(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 8 {
		unit *= 2
	}
	return d / unit * unit
}
