package ratelimit

import "time"

// conclude decides and settles the calls of a batch that ran. Where a request was
// refused by one limit, what its others granted is given back in the next batch,
// ahead of everybody. It returns the calls for that batch. began is when this one
// did, by the steps of clears.
func (p *Postgres) conclude(q *Queue, f *flight, calls []*Call, deadline time.Time, began int64) []*Call {
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
	if f.holder != nil {
		back.holder = f.holder
		p.held.narrow(f.holder, back)
	}
	var several []*Call
	var waiters []*waiter
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
			continue
		}
		if c.gives {
			p.clearGiven(c)
		}
		c.failed = failure(c)
		if c.failed != nil {
			if standing(c) {
				c.failed = nil
			}
			continue
		}
		for j := 0; j < len(c.places) && !c.reset; j++ {
			c.Decisions = append(c.Decisions, decideHit(c, j))
		}
		if len(c.Hits) > 1 && !c.gives { // what it gave is not to be given twice
			c.deadline = deadline
			c.refused = time.Now()
			several = append(several, c)
			waiters = append(waiters, p.held.newWaiter(q, c, began))
			continue
		}
		for j := 0; j < len(c.Decisions) && p.blocked != nil; j++ {
			if known := p.blocked.learn(c, j); known != nil {
				p.blocked.note(c.places[j].item.id, known, began)
			}
		}
	}
	var again []*Call
	if len(several) > 0 {
		leaveOut(calls, several)
		again = p.held.reconsider(q, f, several, waiters)
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

// decideHit is the decision on the ith hit of a call.
func decideHit(c *Call, i int) Decision {
	it := c.places[i].item
	if granted(c, i) {
		behind := it.given
		if it.kind == take {
			behind += (it.granted - 1 - c.places[i].nth) * it.cost
		}
		return admitted(it.limit, &it.row, it.now, behind)
	}
	return refused(it.limit, &it.row, it.now, c.Hits[i].Cost, it.given)
}
