package ratelimit

import "time"

// maxAttempts bounds how often a request is decided again because what refused
// it was only held by another that was refused as well.
const maxAttempts = 3

// conclude settles the calls of a batch that ran. Where a request was refused by
// one limit, what its others granted is given back in the next batch, ahead of
// everybody. It returns the calls for that batch.
func (p *Postgres) conclude(l *lane, calls []*call) []*call {
	var again []*call
	back := &call{internal: true}
	for _, c := range calls {
		if !c.internal && !c.reset {
			c.giveBack(back)
		}
	}
	now := time.Now()
	for i, c := range calls {
		err := c.failure()
		switch {
		case c.internal:
			if err != nil {
				p.report(err)
			}
		case err != nil:
			l.settle(calls, i, err)
		case c.worthAnother() && now.Before(c.deadline):
			again = append(again, c)
		default:
			c.decideAll(p.blocked, now)
			l.settle(calls, i, nil)
		}
	}
	if len(back.hits) > 0 {
		again = append([]*call{back}, again...)
	}
	return again
}

// failure is the first error among a call's items.
func (c *call) failure() error {
	for _, at := range c.places {
		if at.item.err != nil {
			return at.item.err
		}
	}
	return nil
}

// granted reports whether the limit of the ith hit had room for it.
func (c *call) granted(i int) bool {
	at := c.places[i]
	if at.item.kind == take {
		return at.nth < at.item.granted
	}
	if c.hits[i].Cost < 0 && !c.hits[i].Peek {
		return true
	}
	return at.item.limit.algorithm().look(at.item.limit, &at.item.row, at.item.now, 0).free >= c.hits[i].Cost
}

// giveBack adds to back what a refused or failed call was charged.
func (c *call) giveBack(back *call) {
	refused := c.failure() != nil
	for i := range c.hits {
		refused = refused || !c.granted(i)
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
		back.claims = append(back.claims, it.limit.algorithm().claim(it.limit, &it.row, it.now))
	}
}

// worthAnother reports whether every limit that refused the call did so while
// it held charges that are now given back.
func (c *call) worthAnother() bool {
	if len(c.hits) < 2 || c.attempts >= maxAttempts {
		return false
	}
	refused := false
	for i, at := range c.places {
		if !c.granted(i) {
			if at.item.given == 0 {
				return false
			}
			refused = true
		}
	}
	c.attempts++
	return refused
}

// decideAll writes a call's decisions, and tells the blocked rows of refusals.
func (c *call) decideAll(b *blocked, now time.Time) {
	decisions := c.decisions[:0]
	for i, at := range c.places {
		it := at.item
		if it.kind == reset {
			break
		}
		granted := c.granted(i)
		behind := it.given
		if it.kind == take && granted {
			behind += (it.granted - 1 - at.nth) * it.cost
		}
		d := decide(it.limit, &it.row, it.now, c.hits[i].Cost, granted, behind)
		if c.hits[i].Cost > d.Limit {
			d.RetryAfter = Never
		} else if !granted && it.kind == take && it.given == 0 && b != nil {
			b.note(it.id, it.limit, it.row, it.now, d.RetryAfter, now)
		}
		decisions = append(decisions, d)
	}
	c.decisions = decisions
}
