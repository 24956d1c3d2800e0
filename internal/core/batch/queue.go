package batch

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
)

// Queue collects calls into batches and passes the batches to Options.Decide. The type worker describes how
// batches form. NewQueue makes a Queue.
type Queue struct {
	Timeout    time.Duration // Options.Timeout; does not change
	health     *health.Health
	maxWorkers int
	decide     func(calls []*Call, deadline time.Time)
	expire     func(calls []*Call)
	fill       func(calls []*Call)
	deliver    func(calls []*Call)
	background *Background

	mu              sync.Mutex // guards the fields below
	pending         []*Call    // in the order of arrival
	collecting      bool       // a worker is about to collect the pending calls
	running         int        // the number of running workers
	batchesInFlight int        // the number of batches in flight
	idleWorkers     []*worker  // idle workers, to reuse their memory
	pace            pace
	beside          any // nil or a *Queue, see Beside: Yaegi does not support a type that contains itself
}

// worker forms batches: it collects the pending calls, decides them with Queue.decide, and repeats both until
// no calls are left. At most one worker at a time collects, and Queue.collecting is set while there is one.
// If its batch is in flight for longer than slowBatch, another worker replaces it as the collecting one, and
// the first worker ends after its batch. At most Options.Workers run concurrently.
type worker struct {
	calls  []*Call // memory for a batch
	sample sample  // of the batch

	// Guarded by the queue's mutex.
	slowTimer *time.Timer // runs overdue
	inFlight  bool
	replaced  bool // another worker has become the collecting one
}

// Options configure a Queue.
type Options struct {
	// Timeout bounds the time that the database takes for a statement. A call waits for its decision as long
	// as health.Patience allows. It may wait a timeout less to join a batch.
	Timeout time.Duration

	// Health tracks the server. Nil means a server that always answers.
	Health *health.Health

	// Workers bounds the number of concurrent batches.
	Workers int

	// Decide decides the calls of a batch by deadline, the deadline of the oldest call. It passes each call
	// to Finish exactly once, and must not panic.
	Decide func(calls []*Call, deadline time.Time)

	// Expire finishes calls that have too little time left for a batch. Nil finishes them with the error of
	// health.NoDecision.
	Expire func(calls []*Call)

	// Fill, unless it is nil, sets Hits and Apart of calls that were just collected, and clears their
	// Decisions and Err. Deliver, unless it is nil, is called with finished calls before their callers
	// continue. If either panics, it is called again with one call at a time, and the calls with which it
	// panics again fail.
	Fill    func(calls []*Call)
	Deliver func(calls []*Call)

	// Background holds the calls that nobody waits for. Finish passes a batch's background calls to it, which
	// ends or retries them. Nil means that no batch has background calls.
	Background *Background
}

// NewQueue returns an empty Queue. It runs goroutines only while it has calls.
func NewQueue(o Options) *Queue {
	if o.Health == nil {
		o.Health = health.New(context.Background(), nil, nil)
	}
	return &Queue{pace: pace{maxHits: startHits}, Timeout: o.Timeout, health: o.Health, maxWorkers: o.Workers,
		decide: o.Decide, expire: o.Expire, fill: o.Fill, deliver: o.Deliver, background: o.Background}
}

// Send adds a call to the queue; Wait must follow. arrived is the time from which the deadline of the call
// counts. It is in the past for a call that moves to q from another queue.
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

// Beside returns the side queue of q, for calls that must not delay the others. At most one batch of the side
// queue is in flight. decide and expire are as in Options. The first call of Beside creates the side queue;
// later calls ignore decide and expire.
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

// Busy reports whether a worker of q or its side queue runs or is about to start.
func Busy(q *Queue) bool {
	q.mu.Lock()
	busy := q.running > 0 || q.collecting
	beside, ok := q.beside.(*Queue)
	q.mu.Unlock()
	return busy || ok && Busy(beside)
}

// RoundDown clears all but the three highest bits of a duration, so that similar durations become equal.
func RoundDown(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 8 {
		unit *= 2
	}
	return d / unit * unit
}
