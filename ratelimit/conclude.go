package ratelimit

import "time"

// maxAttempts bounds how often a request is decided again because what refused
// it was only held by another that was refused as well.
const maxAttempts = 3

// conclude decides and settles the calls of a batch that ran. Where a request was
// refused by one limit, what its others granted is given back in the next batch,
// ahead of everybody. It returns the calls for that batch. began is when this one
// did, by the clock of blocked.
func (p *Postgres) conclude(q *Queue, calls []*Call, deadline time.Time, began int64) []*Call {
	back := &Call{internal: true}
	for _, c := range calls {
		for j := 0; len(c.places) > 1 && j < len(c.places); j++ {
			if c.places[j].nth < c.places[j].item.granted {
				continue
			}
			if !c.reset && !c.internal {
				giveBack(c, back)
			}
			break
		}
	}
	var again []*Call
	// A call comes again if as much time is left as the batch can have taken: it
	// shares the next one with others, whose time would end with its own.
	soon := time.Now().Add(q.timeout / 2)
	for _, c := range calls {
		// Most pass. That is in plain sight, for an interpreter.
		granted := 0
		for j := range c.places {
			at := &c.places[j]
			it := at.item
			if at.nth >= it.granted {
				break // only takes that did not fail are granted anything
			}
			left := it.free + it.given + (it.granted-1-at.nth)*it.cost
			if left < 0 {
				left = 0
			}
			if left > it.quota {
				left = it.quota
			}
			c.Decisions = append(c.Decisions, Decision{Allowed: true, Limit: it.quota, Remaining: left, Reset: time.UnixMicro(it.reset)})
			granted++
		}
		if granted > 0 && granted == len(c.places) {
			continue
		}
		c.Decisions = c.Decisions[:0]
		if c.internal {
			p.report(failure(c))
			p.clearGiven(c)
			continue
		}
		if c.gives {
			p.clearGiven(c)
		}
		c.failed = failure(c)
		if c.failed != nil {
			continue
		}
		if len(c.Hits) > 1 && worthAnother(c) && soon.Before(deadline) {
			c.deadline = deadline
			again = append(again, c)
			continue
		}
		for j := 0; j < len(c.places) && !c.reset; j++ {
			c.Decisions = append(c.Decisions, decideHit(p.blocked, c, j, began))
		}
	}
	if len(again) > 0 {
		leaveOut(calls, again)
	}
	settle(q, calls, nil)
	if len(back.Hits) > 0 {
		again = append([]*Call{back}, again...)
	}
	return again
}

// leaveOut takes some of the calls, in the same order, out of a batch.
func leaveOut(calls, some []*Call) {
	for i, c := range calls {
		if len(some) > 0 && c == some[0] {
			calls[i] = nil
			some = some[1:]
		}
	}
}

// failure is the first error among a call's items.
func failure(c *Call) error {
	for i := range c.places {
		at := &c.places[i]
		if at.item.err != nil {
			return at.item.err
		}
		if at.before != nil && at.before.err != nil {
			return at.before.err
		}
	}
	return nil
}

// granted reports whether the limit of the ith hit had room for it.
func granted(c *Call, i int) bool {
	it := c.places[i].item
	if it.kind == take {
		return c.places[i].nth < it.granted
	}
	h := &c.Hits[i]
	if it.kind == reset || h.Cost < 0 && !h.Peek {
		return true
	}
	return fits(it.limit, &it.row, it.now, h.Cost)
}

// giveBack adds to back what a call was charged, if it is refused or failed.
func giveBack(c, back *Call) {
	refused := failure(c) != nil
	for i := range c.Hits {
		refused = refused || !granted(c, i)
	}
	if !refused {
		return
	}
	for i, at := range c.places {
		it := at.item
		if it.kind != take || it.err != nil || at.nth >= it.granted {
			continue
		}
		it.given += it.cost
		h := c.Hits[i]
		h.Cost = -it.cost
		back.Hits = append(back.Hits, h)
		back.claims = append(back.claims, algorithms[stepsOf(it.limit)].claim(it.limit, &it.row, it.now))
	}
}

// worthAnother reports whether every limit that refused the call did so while
// it held charges that are now given back.
func worthAnother(c *Call) bool {
	if c.attempts >= maxAttempts {
		return false
	}
	refused := false
	for i, at := range c.places {
		if !granted(c, i) {
			if at.item.given == 0 {
				return false
			}
			refused = true
		}
	}
	c.attempts++
	return refused
}

// decideHit is the decision on the ith hit of a call. It tells the blocked rows
// of a refusal.
func decideHit(b *blocked, c *Call, i int, began int64) Decision {
	it := c.places[i].item
	if granted(c, i) {
		behind := it.given
		if it.kind == take {
			behind += (it.granted - 1 - c.places[i].nth) * it.cost
		}
		return admitted(it.limit, &it.row, it.now, behind)
	}
	d := refused(it.limit, &it.row, it.now, c.Hits[i].Cost, it.given)
	if it.kind == take && it.given == 0 && b != nil {
		b.note(it.id, it.limit, it.row, it.now, it.cost, d.RetryAfter, began)
	}
	return d
}
