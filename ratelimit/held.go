package ratelimit

import (
	"sync/atomic"
	"time"
)

// What a request of several limits is charged by some is given back if another
// refuses it. Until then these charges hold quota for nobody: a refusal for their
// sake is not the last word. Two requests could refuse each other so, with quota
// left for either. Such a refusal is decided again, when what is held has been
// given back: at once if the batch itself did, and else when the other batch of
// this process has landed that may, unless that one hangs. Of other processes
// nothing is known.

// maxAttempts bounds how often a request is decided again.
const maxAttempts = 3

// mayHold notes that a flight's batch charges the rows of a plan.
func mayHold(q *Queue, f *flight, p *plan, deadline time.Time) {
	if !p.several {
		return // nothing of it is given back
	}
	q.mu.Lock()
	f.plan = p
	f.deadline = deadline
	q.mu.Unlock()
}

// holdsNoMore notes that it is known what of a plan is given back.
func holdsNoMore(q *Queue, f *flight, p *plan) {
	if !p.several {
		return
	}
	q.mu.Lock()
	f.plan = nil
	q.mu.Unlock()
}

// giveSoon notes the rows to which a call is to give back.
func giveSoon(q *Queue, back *Call) {
	if len(back.Hits) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.giving == nil {
		q.giving = map[rowKey]int{}
	}
	for i := range back.Hits {
		q.giving[rowOf(&back.Hits[i])]++
	}
}

// gaveBack ends what giveSoon began, if a call is one that gives back.
func gaveBack(q *Queue, c *Call) {
	if c == nil || !c.internal {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range c.Hits {
		id := rowOf(&c.Hits[i])
		if q.giving[id]--; q.giving[id] <= 0 {
			delete(q.giving, id)
		}
	}
}

// reconsider decides refused calls of several hits, or returns them if they are to
// come again, or lets them wait for another flight. Those two leave the batch.
func (p *Postgres) reconsider(q *Queue, f *flight, calls, refused []*Call, deadline time.Time, began int64) (again []*Call) {
	undecided := refused[:0]
	q.mu.Lock()
	inTime := worthwhile(q, deadline)
	hung := time.Now().Add(q.timeout * 3 / 4) // the deadline of what has been under way for a quarter of its time
	for _, c := range refused {
		held := false
		var by *flight
		if inTime && c.attempts < maxAttempts {
			held, by = p.holding(q, f, c, hung, deadline, began)
		}
		if !held {
			decide(p.blocked, c, began)
			continue
		}
		c.attempts++
		c.deadline = deadline
		undecided = append(undecided, c)
		if by == nil {
			again = append(again, c)
			continue
		}
		decide(nil, c, began) // in case time runs out
		by.waiting = append(by.waiting, c)
	}
	q.mu.Unlock()
	leaveOut(calls, undecided)
	return again
}

// worthwhile reports whether calls may come again: if as much time is left as
// their batch can have taken. They share the next one with others, whose time
// would end with theirs.
func worthwhile(q *Queue, deadline time.Time) bool {
	return time.Now().Add(q.timeout / 2).Before(deadline)
}

// holding reports whether all that refuses a call may be held for nobody, and
// which flight's batch is to be waited for to know: no later one, whose time ends
// later, and none of a deadline before hung. The caller holds the mutex.
func (p *Postgres) holding(q *Queue, f *flight, c *Call, hung, deadline time.Time, began int64) (bool, *flight) {
	var by *flight
	refused := false
	for i := range c.places {
		if granted(c, i) {
			continue
		}
		refused = true
		it := c.places[i].item
		if it.kind != take {
			return false, nil
		}
		if other := chargedBy(q, f, it.id); other != nil {
			if other.deadline.Before(hung) {
				return false, nil
			}
			if !other.deadline.After(deadline) {
				by = other
			}
		} else if it.given == 0 && q.giving[it.id] == 0 && !wasCleared(p.blocked, it.id, began) {
			return false, nil
		}
	}
	return refused, by
}

// chargedBy returns another flight whose batch charges a row. The caller holds the
// mutex.
func chargedBy(q *Queue, f *flight, id rowKey) *flight {
	for _, other := range q.fleet {
		if other != f && other.plan != nil && other.plan.latest[id] != nil {
			return other
		}
	}
	return nil
}

// release adds to the calls that come again those that have waited for a flight,
// and returns besides whose time has run out: the refusal stands. The caller holds
// the mutex.
func release(q *Queue, f *flight, again []*Call) (all, refused []*Call) {
	waited := f.waiting
	f.waiting = nil
	for _, c := range waited {
		if c.cancellable && atomic.LoadInt32(&c.settled) == 1 {
			continue // nobody waits for it, and it holds nothing
		}
		if worthwhile(q, c.deadline) {
			c.Decisions = c.Decisions[:0]
			again = append(again, c)
		} else {
			refused = append(refused, c)
		}
	}
	return again, refused
}
