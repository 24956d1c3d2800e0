package ratelimit

import "time"

// maxAttempts bounds how often a request is decided again because what refused
// it was only held by another that was refused as well.
const maxAttempts = 3

// conclude decides and settles the calls of a batch that ran. Where a request was
// refused by one limit, what its others granted is given back in the next batch,
// ahead of everybody. It returns the calls for that batch.
func (p *Postgres) conclude(l *lane, calls []*call) []*call {
	back := &call{internal: true}
	for _, c := range calls {
		if len(c.hits) > 1 && !c.reset && !c.internal {
			giveBack(c, back)
		}
	}
	var again []*call
	now := time.Now()
	for i, c := range calls {
		if len(c.places) == 1 {
			if at := &c.places[0]; at.nth < at.item.granted && at.item.err == nil {
				// One hit, admitted: most are. Granted hits are of takes.
				it := at.item
				c.decisions = append(c.decisions, admitted(it.limit, &it.row, it.now, it.given+(it.granted-1-at.nth)*it.cost))
				continue
			}
		}
		if c.internal {
			p.report(failure(c))
			p.clearGiven(c)
			continue
		}
		c.failed = failure(c)
		if c.failed != nil {
			continue
		}
		if len(c.hits) > 1 && worthAnother(c) && now.Before(c.queued.Add(l.timeout)) {
			again = append(again, c)
			calls[i] = nil
			continue
		}
		for j := 0; j < len(c.places) && !c.reset; j++ {
			c.decisions = append(c.decisions, decideHit(p.blocked, c, j, now))
		}
	}
	settle(l, calls, nil)
	if len(back.hits) > 0 {
		again = append([]*call{back}, again...)
	}
	return again
}

// failure is the first error among a call's items.
func failure(c *call) error {
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
func granted(c *call, i int) bool {
	it := c.places[i].item
	if it.kind == take {
		return c.places[i].nth < it.granted
	}
	h := &c.hits[i]
	if it.kind == reset || h.Cost < 0 && !h.Peek {
		return true
	}
	return fits(it.limit, &it.row, it.now, h.Cost)
}

// giveBack adds to back what a refused or failed call was charged.
func giveBack(c, back *call) {
	refused := failure(c) != nil
	for i := range c.hits {
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
		h := c.hits[i]
		h.Cost = -it.cost
		back.hits = append(back.hits, h)
		back.claims = append(back.claims, algorithms[stepsOf(it.limit)].claim(it.limit, &it.row, it.now))
	}
}

// worthAnother reports whether every limit that refused the call did so while
// it held charges that are now given back.
func worthAnother(c *call) bool {
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
func decideHit(b *blocked, c *call, i int, now time.Time) Decision {
	it := c.places[i].item
	if granted(c, i) {
		behind := it.given
		if it.kind == take {
			behind += (it.granted - 1 - c.places[i].nth) * it.cost
		}
		return admitted(it.limit, &it.row, it.now, behind)
	}
	d := refused(it.limit, &it.row, it.now, c.hits[i].Cost, it.given)
	if it.kind == take && it.given == 0 && b != nil {
		b.note(it.id, it.limit, it.row, it.now, d.RetryAfter, now)
	}
	return d
}
