package batch

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Call changes or reads rows: a Take or Reset that waits for its decision, or a call that nobody waits for
// (see Background). A call that is waited for can be reused.
//
// The caller owns a Call until Send and after Wait; in between the Queue owns it. A cancelled Call (see
// Cancel) may stay with its Queue and must not be reused.
type Call struct {
	Hits      []ratelimit.Hit
	Reset     bool                 // restore the full quotas of the keys of Hits, instead of charging
	Decisions []ratelimit.Decision // one for each hit, unless Err is set
	Err       error                // why Decisions are missing, or why a call Before or After had no effect
	Owner     any                  // a value of the caller, which the Queue does not use
	Arrived   time.Time            // the time at which the call was sent

	// Rows has what is remembered of the row of each hit, or nil. It may be shorter than Hits. The
	// store sets it before the call is decided.
	Rows []*lease.Row

	// Apart reports whether one of Hits is Apart: see Split. Prepare and Options.Fill set it.
	Apart bool

	// Cancellable allows Cancel. The caller sets it before Send.
	Cancellable bool

	// Order says when a batch decides the call: with its requests, which is the zero value, or before or
	// after them. Nobody waits for a call before or after the requests, and the fields up to End are for such
	// a call. It has one hit. If Claim is set, its cost is refunded or charged in any case.
	Order  Order
	Repeat bool  // sent again until it is answered; else only if it certainly had no effect
	Partly bool  // as much of the cost is charged as fits
	Claim  int64 // of the charge to correct, see Definition.Adjust; of a limit InFlight, the first slot
	Window int64 // see algorithm.WindowOf: calls of one window of a row may be added up
	Alone  bool  // the call has failed by itself, and has a statement of its own

	// Granted is the cost that was charged of a call that may be granted in part. End is called once, after
	// the call is decided or lost, with an error if it is lost. Nil does nothing.
	Granted int64
	End     func(granted int64, err error)
	failed  time.Time // when the call failed by itself first

	finished int32 // 1 once Finish or Cancel has ended the wait of a cancellable call
	done     chan struct{}

	part *callPart // not nil in a part of another call
	open int32     // the number of unfinished parts of this call; atomic
}

// Order says when a batch decides a call.
type Order uint8

// The orders of calls. Somebody waits for those With the requests alone.
const (
	With Order = iota
	Before
	After
)

// DigestPrefix begins each stored key that is a digest; see ratelimit.DigestKey.
const DigestPrefix = "sha256:"

// NewCall returns a Call without hits.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// Prepare readies a call for another request. It copies hits, because a cancelled call outlives its
// caller's slice.
func (c *Call) Prepare(hits []ratelimit.Hit, reset bool) {
	c.Hits = append(c.Hits[:0], hits...)
	c.Rows = c.Rows[:0]
	c.Decisions = c.Decisions[:0]
	c.Err = nil
	c.Reset = reset
	c.Apart = false
	if !reset {
		for i := range hits {
			if hits[i].Apart {
				c.Apart = true
				break
			}
		}
	}
	c.Cancellable = false
	c.finished = 0
}

// Cancel ends the wait of a cancellable call with err. The call stays in its batch, so its hits may or
// may not be charged.
func Cancel(c *Call, err error) {
	if atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
		c.Err = err
		c.done <- struct{}{}
	}
}

// callPart links a part to the call from which Split made it.
type callPart struct {
	whole *Call
	at    []int // the indexes of the hits in whole.Hits
	apart bool  // the part is a hit that is Apart
}

// Split replaces each call that has hits Apart by its parts: one call for each hit that is Apart, and
// one for the others. Finish finishes the whole call with its last part. Several goroutines may finish
// the parts: each part writes its own decisions, and only the part of the others may set Err.
func Split(calls []*Call) []*Call {
	for i, c := range calls {
		if !c.Apart {
			continue
		}
		split := append([]*Call(nil), calls[:i]...)
		for _, c := range calls[i:] {
			if c.Apart {
				split = append(split, parts(c)...)
			} else {
				split = append(split, c)
			}
		}
		return split
	}
	return calls
}

// parts returns the parts of a call.
func parts(c *Call) []*Call {
	var made []*Call
	var together *Call
	for i := range c.Hits {
		h := &c.Hits[i]
		if !h.Apart && together != nil {
			together.Hits = append(together.Hits, *h)
			together.part.at = append(together.part.at, i)
			continue
		}
		p := NewCall()
		p.Hits = append(p.Hits, *h)
		p.Arrived = c.Arrived
		p.part = &callPart{whole: c, at: []int{i}, apart: h.Apart}
		if !h.Apart {
			together = p
		}
		made = append(made, p)
	}
	c.open = int32(len(made))
	c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
	return made
}

// finishPart copies the decisions or the error of a part into its whole call. It returns that call if
// this was the last part, and nil otherwise. A hit that is Apart and has no decision does not fail the
// call.
func finishPart(c *Call) *Call {
	whole := c.part.whole
	for i, at := range c.part.at {
		switch {
		case c.Err == nil:
			whole.Decisions[at] = c.Decisions[i]
		case c.part.apart:
			whole.Decisions[at] = ratelimit.Decision{Allowed: true, Limit: c.Hits[i].Limit.Capacity(),
				Source: ratelimit.Undecided}
		default:
			whole.Err = c.Err
		}
	}
	if atomic.AddInt32(&whole.open, -1) > 0 {
		return nil
	}
	return whole
}

// Finish ends the wait of calls. Calls without an Err of their own get err. It must be called exactly
// once for each call of a batch. Finish sets the elements of calls to nil, because the callers own
// their calls again.
func Finish(q *Queue, calls []*Call, err error) {
	n := 0
	var unattended []*Call
	for i, c := range calls {
		calls[i] = nil
		if c.Order != With {
			unattended = append(unattended, c)
			continue
		}
		failure := err
		if c.part != nil {
			if c.Err == nil {
				c.Err = err
			}
			if c = finishPart(c); c == nil {
				continue
			}
			failure = nil
		}
		if c.Cancellable && !atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
			continue
		}
		if c.Err == nil {
			c.Err = failure
		}
		calls[n] = c
		n++
	}
	if q.deliver != nil && n > 0 {
		callEach(q.deliver, calls[:n])
	}
	if len(unattended) > 0 {
		endUnattended(q.background, unattended, err)
	}
	for i := 0; i < n; i++ {
		c := calls[i]
		calls[i] = nil
		c.done <- struct{}{}
	}
}

// callEach calls f with all calls. If f panics, callEach calls it again with one call after the other,
// sets Err in those with which it panics again, and returns false.
func callEach(f func(calls []*Call), calls []*Call) bool {
	if PanicError(func() { f(calls) }) == nil {
		return true
	}
	for i, c := range calls {
		one := calls[i : i+1]
		if err := PanicError(func() { f(one) }); err != nil {
			c.Err = err
		}
	}
	return false
}

// PanicError runs f and returns a panic as an error.
func PanicError(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ratelimit: panic: %v", p)
		}
	}()
	f()
	return nil
}
