package batch

import (
	"sync"
	"time"
)

// Queue is where calls wait for the batch that decides them. The type worker describes how batches
// are formed.
type Queue struct {
	Timeout    time.Duration // that of Options; does not change
	silent     func() bool
	maxWorkers int
	decide     func(calls []*Call, deadline time.Time)
	expire     func(calls []*Call)
	fill       func(calls []*Call)
	deliver    func(calls []*Call)

	mu         sync.Mutex // guards all that follows
	pending    []*Call    // in the order of arrival
	collecting bool       // a worker is about to collect the pending calls
	running    int        // how many workers run
	inFlight   int        // how many batches are in flight
	sent       int        // how many calls are in these batches
	free       []*worker  // workers that do not run; their memory is used again
	pace       pace
	beside     any // nil, or the *Queue of Beside: Yaegi understands no type that has itself
}

// worker forms batches. A worker collects the pending calls, decides them with
// Queue.decide, and repeats both until no calls are left. At most one worker at a time is
// the one that collects next; Queue.collecting is true while there is one. If a batch is in
// flight for longer than patience, another worker collects the next batch, up to the maximum
// number of workers. The first worker then ends after its batch.
type worker struct {
	calls  []*Call // memory for a batch
	sample sample  // of the batch

	// Guarded by the queue's mutex.
	watch    *time.Timer // runs overdue
	inFlight bool
	replaced bool // another worker collects now
}

// Options are the parts of a Queue.
type Options struct {
	// Timeout is how long the database has for a statement. A call waits for its batch for up to three timeouts, and
	// for its decision for up to MostTimeouts.
	Timeout time.Duration

	// Silent reports whether the database does not answer. One timeout is for a call's whole wait then. Nil is never.
	Silent func() bool

	// Workers is how many batches may be in flight at once.
	Workers int

	// Decide decides the calls of a batch before the deadline, which is that of the
	// call that came first. It ends the wait of each call with Finish, exactly once, and
	// does not panic.
	Decide func(calls []*Call, deadline time.Time)

	// Expire ends the wait of calls that have too little time left for a batch, with
	// Finish. Nil finishes them with ratelimit.ErrOverloaded.
	Expire func(calls []*Call)

	// Fill is called with calls that were just collected, and sets their Hits. Deliver
	// is called with calls that are finished, before their callers continue. If one of
	// them panics, it is called again with one call after the other; calls with which
	// it panics again fail. Nil does nothing.
	Fill    func(calls []*Call)
	Deliver func(calls []*Call)
}

// MostTimeouts is how many timeouts a call waits for its decision while the database answers.
const MostTimeouts = 4

// NewQueue returns a queue. It starts goroutines only while there are calls.
func NewQueue(o Options) *Queue {
	if o.Silent == nil {
		o.Silent = func() bool { return false }
	}
	return &Queue{pace: pace{most: startHits}, Timeout: o.Timeout, silent: o.Silent, maxWorkers: o.Workers,
		decide: o.Decide, expire: o.Expire, fill: o.Fill, deliver: o.Deliver}
}

// Send puts a call into the queue. It arrived now, or before: a queue can pass a call on to another one, which then
// finishes it. Wait must follow.
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

// Beside returns a queue for those calls of a queue that must not delay the others: only one batch of
// them is in flight. decide and expire are as in Options. The first call makes the queue.
func Beside(q *Queue, decide func(calls []*Call, deadline time.Time), expire func(calls []*Call)) *Queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	if beside, ok := q.beside.(*Queue); ok {
		return beside
	}
	made := NewQueue(Options{
		Timeout: q.Timeout, Silent: q.silent, Workers: 1, Decide: decide, Expire: expire, Deliver: q.deliver,
	})
	q.beside = made
	return made
}

// Wait waits until a call that was sent is finished.
func Wait(c *Call) { <-c.done }

// Enter is Send and Wait.
func Enter(q *Queue, c *Call) {
	Send(q, c, time.Now())
	<-c.done
}

// Waiting is how many calls wait, pending or in flight, also beside the queue.
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

// Busy reports whether a worker runs, or is about to start, also beside the queue.
func Busy(q *Queue) bool {
	q.mu.Lock()
	busy := q.running > 0 || q.collecting
	beside, ok := q.beside.(*Queue)
	q.mu.Unlock()
	return busy || ok && Busy(beside)
}

// RoundDown keeps the three highest bits of a duration, so there are few different results.
func RoundDown(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 8 {
		unit *= 2
	}
	return d / unit * unit
}
