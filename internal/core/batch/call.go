package batch

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Call is one Take or Reset that waits for its decision. It can be used for one request
// after another.
//
// The caller owns a Call until Send and after Wait; in between the Queue owns it. A
// cancelled Call (see Cancel) may stay with its Queue and is not used again.
type Call struct {
	Hits      []ratelimit.Hit      // what the call asks for
	Reset     bool                 // the keys of Hits get their full quotas back
	Decisions []ratelimit.Decision // one for each hit, unless Err is set
	Err       error                // why there are no decisions
	Owner     any                  // whatever the caller needs to find its own data
	Arrived   time.Time            // when the call was sent

	// Apart is whether one of Hits is apart: see Split. Prepare and Fill set it.
	Apart bool

	// Cancellable allows Cancel. The caller sets it before Send.
	Cancellable bool

	finished int32 // of a cancellable call: 1 once Finish or Cancel has ended the wait
	done     chan struct{}

	part *callPart // of a part of another call
	open int32     // how many parts of this call are not finished; atomic
}

// DigestPrefix begins each stored key that is a digest, see ratelimit.DigestKey.
const DigestPrefix = "sha256:"

// NewCall returns a call.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// Prepare makes a call that was used before ready for hits, which it copies: a cancelled
// call outlives its caller's slice.
func (c *Call) Prepare(hits []ratelimit.Hit, reset bool) {
	c.Hits = append(c.Hits[:0], hits...)
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

// Cancel ends the wait of a cancellable call with an error. The call stays in its batch,
// so whether its hits are charged is unknown.
func Cancel(c *Call, err error) {
	if atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
		c.Err = err
		c.done <- struct{}{}
	}
}
