package ratelimit

import (
	"sync"
	"time"
)

// Group commit. Hits that come while a statement is under way wait in a queue;
// when it returns, what has queued goes into the next one. A lone caller pays one
// round trip, a crowd shares one, and no timer is involved.

const (
	// maxHits bounds the hits of a batch; what is over waits for the next.
	maxHits = 400

	// patience is how long the queue waits for a batch under way before
	// another takes off beside it, on another connection: one slow statement
	// must not hold everybody up.
	patience = 5 * time.Millisecond
)

// call is one request that waits for its decisions. It owns its slices, so that
// a caller who stops waiting may reuse his, and serves request after request.
type call struct {
	hits      []Hit
	decisions []Decision
	places    []place // where each hit went in the batch
	claims    []claim // of an internal call that gives back; parallel to hits
	reset     bool    // the hits' keys are to be forgotten
	internal  bool    // nobody waits
	attempts  int     // batches it has been in
	deadline  time.Time
	err       error
	settled   bool // guarded by the lane's mutex
	done      sync.WaitGroup
}

// idleCalls are free for the next request.
var idleCalls = sync.Pool{New: func() any { return &call{} }}

// newCall returns a call for the hits, with their keys as they are stored.
func newCall(hits []Hit, reset bool) *call {
	c := idleCalls.Get().(*call)
	c.hits = append(c.hits[:0], hits...)
	c.decisions = c.decisions[:0]
	for i := range c.hits {
		c.hits[i].Key = c.hits[i].storedKey()
	}
	c.reset, c.attempts, c.settled = reset, 0, false
	c.err = nil // apart: Yaegi takes no nil among several
	return c
}

// place is a hit's place in a batch: the nth of an item's equal hits.
type place struct {
	item *item
	nth  int64
}

// lane is a queue of calls that have the same timeout. Since deadlines in it are
// in the order of arrival, no call needs a timer: a batch ends by its earliest
// deadline, and whoever queued behind it then still has time.
type lane struct {
	timeout time.Duration
	flights int // batches that may be under way at once
	run     func(calls []*call, deadline time.Time) []*call

	mu       sync.Mutex
	queue    []*call
	flying   int
	departed time.Time // of the latest batch
}

// submit queues a call and waits until it is settled.
func (l *lane) submit(c *call) {
	c.done.Add(1)
	now := time.Now()
	c.deadline = now.Add(l.timeout)
	l.mu.Lock()
	l.queue = append(l.queue, c)
	if l.flying == 0 || l.flying < l.flights && now.Sub(l.departed) > patience {
		l.flying++
		l.departed = now
		go l.fly()
	}
	l.mu.Unlock()
	c.done.Wait()
}

// fly runs batches until the queue is empty. Nothing may panic out of here: in
// a proxy's plugin that would end the proxy.
func (l *lane) fly() {
	for {
		calls := l.depart()
		if len(calls) == 0 {
			return
		}
		again := l.runSafely(calls)
		if len(again) > 0 {
			l.mu.Lock()
			l.queue = append(again, l.queue...)
			l.mu.Unlock()
		}
	}
}

// depart takes what has queued, as much as fits into one batch.
func (l *lane) depart() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, hits := 0, 0
	for n < len(l.queue) && (n == 0 || hits+len(l.queue[n].hits) <= maxHits) {
		hits += len(l.queue[n].hits)
		n++
	}
	calls := l.queue[:n:n]
	if n == len(l.queue) {
		l.queue = nil
	} else {
		l.queue = append([]*call(nil), l.queue[n:]...)
	}
	if n == 0 {
		l.flying--
		return nil
	}
	l.departed = time.Now()
	return calls
}

// runSafely decides the calls, and returns those for the next batch.
func (l *lane) runSafely(calls []*call) (again []*call) {
	defer func() {
		if p := recover(); p != nil {
			again = nil
			l.settleAll(calls, panicError(p))
		}
	}()
	deadline := time.Time{}
	for _, c := range calls {
		if !c.internal && (deadline.IsZero() || c.deadline.Before(deadline)) {
			deadline = c.deadline
		}
	}
	if deadline.IsZero() {
		deadline = time.Now().Add(l.timeout)
	}
	return l.run(calls, deadline)
}

// settle ends the wait of the ith call, once. The caller of Take may use it for
// another request from then on, so it leaves the batch.
func (l *lane) settle(calls []*call, i int, err error) {
	c := calls[i]
	calls[i] = nil
	if !c.internal {
		l.end(c, err)
	}
}

// settleAll ends the wait of all calls that are left.
func (l *lane) settleAll(calls []*call, err error) {
	for i, c := range calls {
		if c != nil {
			l.settle(calls, i, err)
		}
	}
}

// end ends a call's wait, unless its caller has stopped waiting.
func (l *lane) end(c *call, err error) {
	l.mu.Lock()
	if c.settled {
		l.mu.Unlock()
		return
	}
	c.settled = true
	c.err = err
	l.mu.Unlock()
	c.done.Done()
}
