package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"
)

// What a request of several limits is charged by some is given back if another
// refuses it. Until then these charges hold quota for nobody. A refusal for their
// sake is not to be the last word: two requests could refuse each other so, with
// quota left for either. So such a refusal waits for the batches of this process
// that may hold the row, and if they give back, the request is decided again. Of
// other processes nothing is known.

const (
	// maxAttempts bounds how often a request is decided again.
	maxAttempts = 3

	// patienceShare is the part of its timeout that a request waits for other
	// batches each time, at most: one that hangs must not keep everybody waiting
	// whom it may have refused.
	patienceShare = 4
)

// held knows the batches that may give back.
type held struct {
	clears  *clears
	blocked *blocked // or nil

	mu      sync.Mutex
	holders []*holder
}

// holder is a batch with requests of several limits, from when it sets out until
// what it gives back has been given back. It is guarded by held's mutex.
type holder struct {
	plan    *plan           // until it is known what it gives back
	giving  map[rowKey]bool // from then on
	waiting []wait
}

// wait is the wait of a waiter for what a holder gives back to a row.
type wait struct {
	w  *waiter
	id rowKey
}

// waiter is a refused call of several hits that may come again. It names neither
// the call nor the queue: Yaegi gets lost in types that lead back to themselves by
// several others.
type waiter struct {
	began int64         // when the call's batch did
	rows  []rowKey      // that refused it
	held  []bool        // whether they held what the batch itself gives back
	known []*blockedRow // what is to be remembered of them, or nil

	mayPass bool             // if they are given something back
	end     func(again bool) // of the wait: the call comes again if it can, or the refusal stands

	// Guarded by held's mutex.
	waits int
	timer *time.Timer
	over  bool
}

// newWaiter returns one for a call of a batch that began then. Where a look refused
// it, it may not pass: more than what others hold may be missing.
func (h *held) newWaiter(q *Queue, c *Call, began int64) *waiter {
	w := &waiter{began: began}
	look := false
	for i := range c.places {
		if granted(c, i) {
			continue
		}
		it := c.places[i].item
		look = look || it.kind != take
		w.rows = append(w.rows, it.id)
		var known *blockedRow
		if h.blocked != nil {
			known = h.blocked.learn(c, i)
		}
		w.known = append(w.known, known)
	}
	w.held = make([]bool, len(w.rows))
	w.mayPass = len(w.rows) > 0 && !look && c.attempts < maxAttempts && worthwhile(q, c.deadline)
	w.end = func(again bool) { h.endOf(q, c, w, again) }
	return w
}

// setOut notes that the batch of a plan may give back to its rows. Nil is one that
// does not.
func (h *held) setOut(p *plan) *holder {
	if !p.several {
		return nil
	}
	by := &holder{plan: p}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holders = append(h.holders, by)
	return by
}

// narrow notes what a holder gives back. Whoever waits for other rows need not do
// so any longer.
func (h *held) narrow(by *holder, back *Call) {
	var giving map[rowKey]bool
	if len(back.Hits) > 0 {
		giving = make(map[rowKey]bool, len(back.Hits))
	}
	for i := range back.Hits {
		giving[rowOf(&back.Hits[i])] = true
	}
	h.mu.Lock()
	by.plan = nil
	by.giving = giving
	ready := h.endWaits(by)
	h.mu.Unlock()
	h.endAll(ready)
}

// land ends the holders for which the batch of a flight was to give back, and its own
// holder unless the calls that come again are to give back for it.
func (h *held) land(f *flight, again []*Call) {
	if f.holder != nil && (len(again) == 0 || !again[0].internal) {
		h.gone(f.holder)
	}
	f.holder = nil
	for _, c := range f.backs {
		for i := range c.Hits {
			h.clear(rowOf(&c.Hits[i])) // it may have been given back if the batch failed
		}
		if c.holder != nil {
			h.gone(c.holder)
		}
	}
	f.backs = nil // they hold keys
}

// clear notes that quota was given back to a row.
func (h *held) clear(id rowKey) {
	h.clears.note(id)
	if h.blocked != nil {
		h.blocked.forget(id)
	}
}

// gone ends a holder: what it gave back has been given back.
func (h *held) gone(by *holder) {
	h.mu.Lock()
	by.plan = nil
	by.giving = nil
	for i, other := range h.holders {
		if other == by {
			h.holders = append(h.holders[:i], h.holders[i+1:]...)
			break
		}
	}
	ready := h.endWaits(by)
	h.mu.Unlock()
	h.endAll(ready)
}

// endWaits ends the waits for a holder, but for rows to which it is giving back,
// and returns those who wait for nothing more. The caller holds the mutex.
func (h *held) endWaits(by *holder) (ready []*waiter) {
	waits := by.waiting
	by.waiting = nil
	for _, w := range waits {
		if by.giving[w.id] {
			by.waiting = append(by.waiting, w)
			continue
		}
		w.w.waits--
		if w.w.waits == 0 && !w.w.over {
			w.w.over = true
			w.w.timer.Stop()
			ready = append(ready, w.w)
		}
	}
	return ready
}

func (h *held) endAll(ready []*waiter) {
	for _, w := range ready {
		h.end(w)
	}
}

// expire ends the waits of a call for batches that are late.
func (h *held) expire(w *waiter) {
	h.mu.Lock()
	over := w.over
	w.over = true
	h.mu.Unlock()
	if !over {
		h.end(w)
	}
}

// end ends the wait of a call, which is to come again if all that refused it has
// been given something back.
func (h *held) end(w *waiter) {
	again := true
	for i, id := range w.rows {
		again = again && (w.held[i] || h.clears.after(id, w.began))
	}
	w.end(again)
}

// reconsider decides what becomes of refused calls of several hits, which have left
// the batch of a flight: some come again at once, which it returns, some wait, and
// the refusals of the others stand.
func (h *held) reconsider(q *Queue, f *flight, calls []*Call, waiters []*waiter) (again []*Call) {
	for i, c := range calls {
		w := waiters[i]
		switch {
		case !w.mayPass || !h.inDoubt(f, w, patienceOf(q, c)):
			h.stand(q, c, w)
		case w.timer == nil:
			retry(c)
			again = append(again, c)
		}
	}
	return again
}

// endOf is how the wait of a call ends.
func (h *held) endOf(q *Queue, c *Call, w *waiter, again bool) {
	switch {
	case c.cancellable && atomic.LoadInt32(&c.settled) == 1:
		// Nobody waits for it any more, and it holds nothing.
	case again && worthwhile(q, c.deadline):
		retry(c)
		resume(q, c)
	default:
		age(c.Decisions, time.Since(c.refused))
		h.stand(q, c, w)
	}
}

// inDoubt reports whether all rows that refused a call may be held for nobody. If
// that depends on other batches, the call waits for them from now on, so long at
// most. What its own batch gave back was there before it.
func (h *held) inDoubt(f *flight, w *waiter, atMost time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var by []*holder
	var ids []rowKey
	for i, id := range w.rows {
		w.held[i] = f.holder.giving[id]
		if w.held[i] || h.clears.after(id, w.began) {
			continue
		}
		before := len(by)
		for _, other := range h.holders {
			if other.mayGiveBack(id) && !gaveBack(f, other) {
				by = append(by, other)
				ids = append(ids, id)
			}
		}
		if len(by) == before {
			return false
		}
	}
	if len(by) == 0 {
		return true
	}
	for i, other := range by {
		other.waiting = append(other.waiting, wait{w, ids[i]})
	}
	w.waits = len(by)
	w.timer = time.AfterFunc(atMost, func() { h.expire(w) })
	return true
}

// gaveBack reports whether the batch of a flight gave back for a holder.
func gaveBack(f *flight, by *holder) bool {
	for _, c := range f.backs {
		if c.holder == by {
			return true
		}
	}
	return false
}

// mayGiveBack reports whether a holder may give back to a row. The caller holds
// held's mutex.
func (by *holder) mayGiveBack(id rowKey) bool {
	if by.plan == nil {
		return by.giving[id]
	}
	it := by.plan.latest[id]
	return it != nil && it.several
}

// stand lets a refusal stand.
func (h *held) stand(q *Queue, c *Call, w *waiter) {
	for i, known := range w.known {
		if known != nil {
			h.blocked.note(w.rows[i], known, w.began)
		}
	}
	settle(q, []*Call{c}, nil)
}

// patienceOf is how long a call may wait now.
func patienceOf(q *Queue, c *Call) time.Duration {
	most := q.timeout / patienceShare
	if left := time.Until(c.deadline) - q.timeout/2; left < most {
		return left
	}
	return most
}

// worthwhile reports whether calls may come again: if as much time is left as
// their batch can have taken. They share the next one with others, whose time
// would end with theirs.
func worthwhile(q *Queue, deadline time.Time) bool {
	return time.Now().Add(q.timeout / 2).Before(deadline)
}

// retry makes a refused call ready for another batch.
func retry(c *Call) {
	c.attempts++
	c.refusal = append(c.refusal[:0], c.Decisions...)
	c.Decisions = c.Decisions[:0]
}

// standing gives a call that has come again its refusal back, since there is no
// other answer, and reports whether it has.
func standing(c *Call) bool {
	if c.attempts == 0 {
		return false
	}
	c.Decisions = append(c.Decisions[:0], c.refusal...)
	age(c.Decisions, time.Since(c.refused))
	return true
}

// age takes the time since decisions were made off what they say is to be waited.
func age(decisions []Decision, by time.Duration) {
	for i := range decisions {
		d := &decisions[i]
		if d.RetryAfter == 0 || d.RetryAfter == Never {
			continue
		}
		d.RetryAfter -= by.Truncate(time.Microsecond)
		if d.RetryAfter < time.Microsecond {
			d.RetryAfter = time.Microsecond
		}
	}
}
