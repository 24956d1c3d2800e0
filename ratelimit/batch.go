package ratelimit

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Group commit. Calls that come while a statement is under way wait in a queue;
// when it returns, what has queued goes into the next one. A lone caller pays one
// round trip, a crowd shares one, and no timer is involved.

const (
	// maxHits bounds the hits of a batch, but for its last call's and for what it
	// gives back; what is over waits for the next. A call that is yet to be filled in counts as one.
	maxHits = 400

	// queueRoom is how many calls a queue holds, in half a megabyte: more than a
	// process has. Whoever should come to a full one waits for room besides his
	// timeout.
	queueRoom = 1 << 16

	// patience is how long the queue waits for a batch under way before
	// another takes off beside it, on another connection: one slow statement
	// must not hold everybody up.
	patience = 5 * time.Millisecond
)

// Queue is where calls wait for the batch that decides them. See NewQueue.
type Queue struct {
	timeout time.Duration
	flights int // batches that may be under way at once
	run     func(f *flight, calls []*Call, deadline time.Time) []*Call
	held    *held

	// Of a queue made by NewQueue; else nil.
	deliver func(calls []*Call)
	receive func(calls []*Call) []*Call

	calls  chan *Call
	manned int32 // 1 while a flight is to take what queues

	mu     sync.Mutex
	backs  []*Call   // calls that give back, ahead of all others
	again  []*Call   // calls that come again, ahead of those in the channel
	aloft  int       // flights
	landed []*flight // free for the next

	// So that no call needs a clock of its own: taken is how many have left the
	// queue, and the first of the marks is no later than the first call in it.
	taken int
	marks []mark
}

// mark says that the calls of a queue, but for the first before, came at or after at.
type mark struct {
	at     time.Time
	before int
}

// Enter puts a call into the queue and waits until it is decided.
func Enter(q *Queue, c *Call) {
	enqueue(q, c)
	<-c.done
}

// enqueue waits only while the queue is full.
func enqueue(q *Queue, c *Call) {
	q.calls <- c
	if atomic.LoadInt32(&q.manned) == 0 && atomic.CompareAndSwapInt32(&q.manned, 0, 1) {
		takeOff(q)
	}
}

// flight runs one batch after the other, as long as there are calls and it is
// not late.
type flight struct {
	calls []*Call // memory for a batch

	// Guarded by the queue's mutex.
	watch    *time.Timer // goes off when it is late
	running  bool
	relieved bool // another has taken over the queue

	// Of its batch; see held.go.
	holder *holder // or nil
	backs  []*Call // those that give back
}

// takeOff starts a flight that mans the queue.
func takeOff(q *Queue) {
	q.mu.Lock()
	nobodyBefore(q, time.Now())
	f := boardingCrew(q)
	q.mu.Unlock()
	go fly(q, f)
}

// nobodyBefore notes that who is queued came at now or later. The caller holds the
// mutex.
func nobodyBefore(q *Queue, now time.Time) {
	q.marks = append(q.marks[:0], mark{now, q.taken})
}

// boardingCrew returns a flight that may start. The caller holds the mutex.
func boardingCrew(q *Queue) *flight {
	q.aloft++
	n := len(q.landed)
	if n == 0 {
		return &flight{}
	}
	f := q.landed[n-1]
	q.landed = q.landed[:n-1]
	f.relieved = false
	return f
}

// fly runs batches until there are no calls. Nothing may panic out of here: in a
// proxy's plugin that would end the proxy.
func fly(q *Queue, f *flight) {
	for {
		runtime.Gosched() // who is about to queue may still come along
		calls, again, since, refused := board(q, f)
		if len(refused) > 0 {
			settle(q, refused, nil)
		}
		if len(calls) == 0 {
			if leave(q) {
				break
			}
			continue
		}
		deadline := since.Add(q.timeout)
		if len(calls) == again {
			deadline = time.Now().Add(q.timeout)
		}
		deadline = deadlineOf(calls[:again], deadline)
		if !arrive(q, f, runSafely(q, f, calls, calls[again:], deadline)) {
			break
		}
	}
	q.mu.Lock()
	q.aloft--
	q.landed = append(q.landed, f)
	q.mu.Unlock()
}

// board returns the calls of the next batch: those that come again, and how many
// these are, and what has queued, as much as fits, and since when; and the overdue.
// From now on the flight may be late.
func board(q *Queue, f *flight) ([]*Call, int, time.Time, []*Call) {
	q.mu.Lock()
	refused := overdue(q)
	hits := 0
	for _, c := range q.backs {
		hits += len(c.Hits)
	}
	retried := 0
	for retried < len(q.again) && hits < maxHits {
		hits += len(q.again[retried].Hits)
		retried++
	}
	now := time.Now()
	queued := len(q.calls) // after now: who comes after these comes after that
	again := len(q.backs) + retried
	room := again + queued
	if room > len(f.calls) {
		f.calls = make([]*Call, 2*room)
	}
	calls := f.calls
	copy(calls, q.backs)
	copy(calls[len(q.backs):], q.again[:retried])
	f.backs = append(f.backs, q.backs...)
	q.backs = nil
	q.again = q.again[retried:]
	n := again
	for n < room && hits < maxHits {
		c := <-q.calls
		calls[n] = c
		hits += len(c.Hits)
		if len(c.Hits) == 0 {
			hits++ // they are not filled in yet
		}
		n++
	}
	since := q.marks[0].at
	q.marks = append(q.marks, mark{now, q.taken + queued})
	q.taken += n - again
	passed := 0 // marks that a later one makes superfluous
	for passed+1 < len(q.marks) && q.marks[passed+1].before <= q.taken {
		passed++
	}
	if passed > 0 {
		q.marks = append(q.marks[:0], q.marks[passed:]...)
	}
	f.running = n > 0
	if f.watch == nil {
		f.watch = time.AfterFunc(patience, func() { late(q, f) })
	} else if f.running {
		f.watch.Reset(patience)
	}
	q.mu.Unlock()
	return calls[:n], again, since, refused
}

// leave reports whether a flight may end: whoever queues next starts another.
func leave(q *Queue) bool {
	atomic.StoreInt32(&q.manned, 0)
	q.mu.Lock()
	empty := len(q.calls) == 0 && len(q.again) == 0 && len(q.backs) == 0
	q.mu.Unlock()
	return empty || !atomic.CompareAndSwapInt32(&q.manned, 0, 1)
}

// deadlineOf is the earliest of those of calls that come again, and of the others.
func deadlineOf(again []*Call, others time.Time) time.Time {
	for _, c := range again {
		if !c.internal && c.deadline.Before(others) {
			others = c.deadline
		}
	}
	return others
}

// flying reports whether there is a flight.
func flying(q *Queue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.aloft > 0
}

// arrive is the end of a batch, of which some calls come again. It reports whether
// the flight still mans the queue.
func arrive(q *Queue, f *flight, again []*Call) bool {
	q.mu.Lock()
	f.running = false
	f.watch.Stop()
	comeAgain(q, again)
	q.mu.Unlock()
	if f.holder != nil || len(f.backs) > 0 {
		q.held.land(f, again)
	}
	if f.relieved && len(again) > 0 && atomic.CompareAndSwapInt32(&q.manned, 0, 1) {
		q.mu.Lock()
		nobodyBefore(q, time.Now()) // the queue was empty when the last flight left it
		q.mu.Unlock()
		f.relieved = false
	}
	return !f.relieved
}

// comeAgain lines calls up for the next batch. What gives back comes first: that is
// there for all. The caller holds the mutex.
func comeAgain(q *Queue, calls []*Call) {
	for _, c := range calls {
		if c.internal {
			q.backs = append(q.backs, c)
		} else {
			q.again = append(q.again, c)
		}
	}
}

// overdue returns the calls that were to come again and have waited too long for
// it: their refusals stand. The caller holds the mutex.
func overdue(q *Queue) (late []*Call) {
	if len(q.again) == 0 {
		return nil
	}
	var inTime []*Call
	for _, c := range q.again {
		if worthwhile(q, c.deadline) {
			inTime = append(inTime, c)
		} else {
			standing(c)
			late = append(late, c)
		}
	}
	q.again = inTime
	return late
}

// resume has a call come again that has waited outside the queue.
func resume(q *Queue, c *Call) {
	q.mu.Lock()
	comeAgain(q, []*Call{c})
	q.mu.Unlock()
	if atomic.CompareAndSwapInt32(&q.manned, 0, 1) {
		takeOff(q)
	}
}

// late has another flight man the queue, if there may be one more.
func late(q *Queue, f *flight) {
	var other *flight
	var refused []*Call
	q.mu.Lock()
	if f.running && !f.relieved {
		if len(q.calls) == 0 {
			nobodyBefore(q, time.Now())
		}
		if q.aloft < q.flights {
			f.relieved = true
			other = boardingCrew(q)
		} else {
			refused = overdue(q)
			f.watch.Reset(patience)
		}
	}
	q.mu.Unlock()
	settle(q, refused, nil)
	if other != nil {
		fly(q, other)
	}
}

// runSafely decides the calls, of which some are fresh from the queue, and returns
// those for the next batch.
func runSafely(q *Queue, f *flight, calls, fresh []*Call, deadline time.Time) (again []*Call) {
	defer func() {
		if p := recover(); p != nil {
			again = nil
			fail(q, calls, panicError(p))
		}
	}()
	if q.receive != nil && len(fresh) > 0 {
		left := q.receive(fresh)
		calls = calls[:len(calls)-len(fresh)+len(left)]
		if len(calls) == 0 {
			return nil
		}
	}
	return q.run(f, calls, deadline)
}

// fail ends the wait of calls of which nothing is known but an error, or that they
// were refused before they came again.
func fail(q *Queue, calls []*Call, err error) {
	var refused []*Call
	for i, c := range calls {
		if c != nil && standing(c) {
			refused = append(refused, c)
			calls[i] = nil
		}
	}
	settle(q, calls, err)
	settle(q, refused, nil)
}

// settle ends the wait of the calls that are left in a batch, once each: nil
// stands for one that has left it.
func settle(q *Queue, calls []*Call, err error) {
	n := 0
	for i, c := range calls {
		calls[i] = nil
		if c == nil || c.internal || c.cancellable && !atomic.CompareAndSwapInt32(&c.settled, 0, 1) {
			continue
		}
		c.Err = err
		if c.failed != nil {
			c.Err = c.failed
		}
		calls[n] = c
		n++
	}
	if q.deliver != nil && n > 0 {
		runEach(q.deliver, calls[:n])
	}
	for i := 0; i < n; i++ {
		c := calls[i]
		calls[i] = nil
		// From here on, its caller may use it for another request.
		c.done <- struct{}{}
	}
}

// forsake ends the wait of a call whose caller stops waiting.
func forsake(c *Call, err error) {
	if atomic.CompareAndSwapInt32(&c.settled, 0, 1) {
		c.Err = err
		c.done <- struct{}{}
	}
}
