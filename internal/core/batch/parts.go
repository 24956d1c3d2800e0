package batch

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// callPart is what a call knows of the call that Split made it from.
type callPart struct {
	whole *Call
	at    []int // of each hit, its index in whole.Hits
	apart bool  // the hit is decided by itself
}

// Split replaces each call that has hits apart by its parts: one call of the hits that are
// decided together, and one call for each hit apart. Finish finishes the whole call with its
// last part. Several goroutines may finish the parts: each writes decisions of its own, and one part alone may set Err.
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
	return calls // most batches
}

// parts makes the parts of a call.
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

// finishPart copies the decisions or the error of a part into its whole call. It returns that call if this
// was the last part, and nil otherwise. A hit apart without a decision does not fail the call.
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
