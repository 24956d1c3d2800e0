package batch

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Call is a Take or Reset of one request, for which a caller waits. A caller can reuse its Call for another
// request.
//
// The caller owns a Call until Send and after Wait; in between the Queue owns it. A call that was canceled by
// a context may stay with its Queue and must not be reused; see Enter.
type Call struct {
	Hits      []ratelimit.Hit
	Reset     bool                 // restore the full quotas of the keys of Hits, instead of charging
	Decisions []ratelimit.Decision // one for each hit, unless Err is set
	Err       error                // the reason why Decisions are missing
	Owner     any                  // any value of the caller; the Queue ignores it
	Arrived   time.Time            // the time at which the call was sent

	// Rows holds the remembered row of each hit, or nil for a hit without one. It may be shorter than Hits.
	// The store sets it before it decides the call.
	Rows []*lease.Cached

	// HasIndependent reports whether any of Hits is Independent; see Split. Prepare and Options.Fill set it.
	HasIndependent bool

	cancelable bool  // Enter sets it if its context can end
	finished   int32 // 1 once Finish or Enter has ended the wait of a cancelable call
	done       chan struct{}

	part      *callPart // not nil in a part of another call
	openParts int32     // the number of unfinished parts of this call; atomic
}

// DigestPrefix begins each stored key that is a digest; see ratelimit.DigestKey.
const DigestPrefix = "sha256:"

// NewCall returns a Call without hits.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// Prepare readies a call for another request. It copies hits, because a canceled call outlives its
// caller's slice.
func (c *Call) Prepare(hits []ratelimit.Hit, reset bool) {
	c.Hits = append(c.Hits[:0], hits...)
	c.Rows = c.Rows[:0]
	c.Decisions = c.Decisions[:0]
	c.Err = nil
	c.Reset = reset
	c.HasIndependent = false
	if !reset {
		for i := range hits {
			if hits[i].Independent {
				c.HasIndependent = true
				break
			}
		}
	}
	c.cancelable = false
	c.finished = 0
}

// callPart links a part to the call from which Split made it.
type callPart struct {
	whole   *Call
	indexes []int // the indexes of the hits in whole.Hits
}

// Split replaces each call with hits that are Independent by its parts: one call for each Independent hit,
// and one call for all other hits. Finish finishes the whole call with its last part. Several goroutines may
// finish parts of one call, because each part writes its own decisions, and only the part of the other hits
// can fail the call.
func Split(calls []*Call) []*Call {
	var split []*Call
	for _, c := range calls {
		if c.HasIndependent {
			split = append(split, splitCall(c)...)
		} else {
			split = append(split, c)
		}
	}
	return split
}

// splitCall returns the parts of a call.
func splitCall(c *Call) []*Call {
	var parts []*Call
	var together *Call
	for i := range c.Hits {
		h := &c.Hits[i]
		if !h.Independent && together != nil {
			together.Hits = append(together.Hits, *h)
			together.part.indexes = append(together.part.indexes, i)
			continue
		}
		p := NewCall()
		p.Hits = append(p.Hits, *h)
		p.Arrived = c.Arrived
		p.part = &callPart{whole: c, indexes: []int{i}}
		if !h.Independent {
			together = p
		}
		parts = append(parts, p)
	}
	c.openParts = int32(len(parts))
	c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
	return parts
}

// finishPart copies the decisions or the error of a part into the whole call. It returns the whole call if
// this was its last part, and nil otherwise. A failed part that is Independent does not fail the whole call.
func finishPart(c *Call) *Call {
	whole := c.part.whole
	for i, index := range c.part.indexes {
		switch {
		case c.Err == nil:
			whole.Decisions[index] = c.Decisions[i]
		case c.Hits[0].Independent:
			whole.Decisions[index] = Undecided(&c.Hits[i])
		default:
			whole.Err = c.Err
		}
	}
	if atomic.AddInt32(&whole.openParts, -1) > 0 {
		return nil
	}
	return whole
}

// Undecided returns the decision on a hit that was not decided, beside hits that were.
func Undecided(h *ratelimit.Hit) ratelimit.Decision {
	return ratelimit.Decision{Allowed: true, Quota: h.Limit.Capacity(), Source: ratelimit.Undecided}
}

// Finish ends the wait for calls. Calls without an Err of their own get err. A batch must finish each of its
// calls exactly once. Finish sets the elements of calls to nil, because the callers own their calls again.
func Finish(q *Queue, calls []*Call, err error) {
	n := 0
	for i, c := range calls {
		calls[i] = nil
		if c.Err == nil {
			c.Err = err
		}
		if c.part != nil {
			if c = finishPart(c); c == nil {
				continue
			}
		}
		if c.cancelable && !atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
			continue
		}
		calls[n] = c
		n++
	}
	if n > 0 && q.Deliver != nil {
		callEach(q.Deliver, calls[:n])
	}
	for i := 0; i < n; i++ {
		c := calls[i]
		calls[i] = nil
		c.done <- struct{}{}
	}
}

// callEach calls f with all calls. If f panics, callEach retries it with one call at a time, and sets Err of
// the calls with which f panics again.
func callEach(f func(calls []*Call), calls []*Call) {
	if Try(func() error { f(calls); return nil }) == nil {
		return
	}
	for i, c := range calls {
		one := calls[i : i+1]
		if err := Try(func() error { f(one); return nil }); err != nil {
			c.Err = err
		}
	}
}

// Try runs f, and returns its error, or an error if f panics.
func Try(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ratelimit: panic: %v", p)
		}
	}()
	return f()
}

// PanicError runs f, and returns an error if f panics.
func PanicError(f func()) error { return Try(func() error { f(); return nil }) }
