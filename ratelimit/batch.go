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
	gives     bool    // some quota is given back: a reset, or a negative cost
	unusual   bool    // some hit is not simply to be charged
	internal  bool    // nobody waits
	attempts  int     // batches it has been in
	queued    time.Time
	failed    error // what the batch says; its caller may have stopped waiting
	err       error // what the caller is told; guarded by the lane's mutex
	settled   bool  // likewise
	done      sync.WaitGroup
}

// place is a hit's place in a batch: the nth of an item's equal hits.
type place struct {
	item   *item
	nth    int64
	before *item // of a hit that gives back: the refund, before the look at what is left
}

// idleCalls are free for the next request.
var idleCalls = sync.Pool{New: func() any { return &call{} }}

// newCall returns a call for the hits, with their keys as they are stored.
func newCall(hits []Hit, reset bool) *call {
	c := idleCalls.Get().(*call)
	c.hits = append(c.hits[:0], hits...)
	c.decisions = c.decisions[:0]
	c.attempts = 0
	c.settled = false
	c.failed = nil
	c.err = nil
	c.reset = reset
	c.gives = reset
	c.unusual = reset
	for i := range c.hits {
		h := &c.hits[i]
		if h.Cost != 1 || h.Secret || h.Peek {
			examine(c, h)
		} else {
			h.Key = StoredKey(h.Key)
		}
	}
	return c
}

// examine is what a hit needs that is not of the most frequent kind.
func examine(c *call, h *Hit) {
	h.Key = h.storedKey()
	if h.Cost < 0 && !h.Peek {
		c.gives = true
	}
	if h.Peek || h.Cost < 1 || h.Cost > capacity(h.Limit) {
		c.unusual = true
	}
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

// submit queues a call and waits until it is settled. The caller has added it
// to c.done.
func submit(l *lane, c *call) {
	c.queued = time.Now()
	l.mu.Lock()
	l.queue = append(l.queue, c)
	if l.flying == 0 || l.flying < l.flights && c.queued.Sub(l.departed) > patience {
		l.flying++
		l.departed = c.queued
		go fly(l)
	}
	l.mu.Unlock()
	c.done.Wait()
}

// fly runs batches until the queue is empty. Nothing may panic out of here: in
// a proxy's plugin that would end the proxy.
func fly(l *lane) {
	for {
		calls := depart(l)
		if len(calls) == 0 {
			return
		}
		again := runSafely(l, calls)
		if len(again) > 0 {
			l.mu.Lock()
			l.queue = append(again, l.queue...)
			l.mu.Unlock()
		}
	}
}

// depart takes what has queued, as much as fits into one batch.
func depart(l *lane) []*call {
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
func runSafely(l *lane, calls []*call) (again []*call) {
	defer func() {
		if p := recover(); p != nil {
			again = nil
			settle(l, calls, panicError(p))
		}
	}()
	return l.run(calls, deadline(l, calls))
}

// deadline is the earliest of the calls': those that come again come first, and
// the others are in the order of arrival.
func deadline(l *lane, calls []*call) time.Time {
	for _, c := range calls {
		if !c.internal {
			return c.queued.Add(l.timeout)
		}
	}
	return time.Now().Add(l.timeout)
}

// settle ends the wait of the calls that are left in a batch, once each: nil
// stands for one that has left it.
func settle(l *lane, calls []*call, err error) {
	l.mu.Lock()
	for i, c := range calls {
		if c == nil || c.internal {
			continue
		}
		// From here on, the caller of Take may use it for another request.
		calls[i] = nil
		if !c.settled {
			c.settled = true
			c.err = err
			if c.failed != nil {
				c.err = c.failed
			}
			c.done.Done()
		}
	}
	l.mu.Unlock()
}

// forsake ends the wait of a call whose caller stops waiting.
func forsake(l *lane, c *call, err error) {
	l.mu.Lock()
	if !c.settled {
		c.settled = true
		c.err = err
		c.done.Done()
	}
	l.mu.Unlock()
}
