package ratelimit

import (
	"strings"
	"sync"
)

// A plan turns the calls of a batch into statements. Hits of equal cost on one
// row become one item. A row occurs once in a statement, so a hit that cannot
// join the row's latest item goes into a later wave: another statement of the
// same pipeline. Arrival order per row holds, and each statement takes its locks
// in order.
//
// A plan and all that it points to serve batch after batch.
type plan struct {
	waves      [][]*group
	latest     map[rowKey]*item
	now        int64 // the server's, once the statements have run
	statements []*Statement
	several    bool // some call has several hits

	items  []*item  // those in use, then those free
	used   int      // items in use
	groups []*group // likewise
	taken  int
	recent map[*Limit]*group // of the first wave's takes
}

// rowKey names a row of either table.
type rowKey struct {
	durable     bool
	prefix, key string
}

// rowOf is the row of a hit whose key is as it is stored.
func rowOf(h *Hit) rowKey { return rowKey{h.Limit.Durable, h.Limit.Prefix, h.Key} }

// item is what one statement does to one row: n hits of equal cost, or a look,
// or a refund.
type item struct {
	kind  kind
	limit *Limit
	id    rowKey
	wave  int
	n     int64
	cost  int64
	claim claim // of a refund; zero if it is unconditional

	several bool // it, or one before on the row, charges for calls of several hits

	answered bool
	granted  int64
	given    int64 // how much of granted·cost is given back
	now      int64
	row      row
	err      error

	// Of the row after a take; see lookAll.
	quota       int64
	free, reset int64
}

// plans are free for the next batch.
var plans = sync.Pool{New: func() any { return &plan{latest: map[rowKey]*item{}, recent: map[*Limit]*group{}} }}

// newPlan returns an empty plan, to be freed when its batch is concluded.
func newPlan() *plan { return plans.Get().(*plan) }

func (p *plan) free() {
	for id := range p.latest {
		delete(p.latest, id)
	}
	// Keys may be parts of long requests, so none is kept.
	for i := range p.waves {
		for _, g := range p.waves[i] {
			for j := range g.keys {
				g.keys[j] = ""
			}
		}
		p.waves[i] = p.waves[i][:0]
	}
	for _, it := range p.items[:p.used] {
		it.id.key = ""
	}
	p.waves, p.statements = p.waves[:0], p.statements[:0]
	p.now, p.used, p.taken, p.several = 0, 0, 0, false
	for l := range p.recent {
		delete(p.recent, l)
	}
	plans.Put(p)
}

// addCalls plans a batch. What most hits are is done here, in one loop: to an
// interpreter each function call costs as much as ten lines.
func addCalls(p *plan, calls []*Call) {
	for _, c := range calls {
		c.places = c.places[:0]
		if c.unusual || c.internal {
			addUnusual(p, c)
			if len(c.Hits) > 1 && !c.internal {
				markSeveral(p, c)
			}
			continue
		}
		for i := range c.Hits {
			h := &c.Hits[i]
			id := rowKey{h.Limit.Durable, h.Limit.Prefix, h.Key}
			it := p.latest[id]
			if it != nil && it.limit == h.Limit && it.cost == h.Cost && it.kind == take {
				it.n++
				c.places = append(c.places, place{item: it, nth: it.n - 1})
				continue
			}
			g := p.recent[h.Limit]
			if it != nil || g == nil || p.used == len(p.items) {
				c.places = append(c.places, putHit(p, take, h.Limit, id, h.Cost, claim{}))
				continue
			}
			// What putHit does, for a row that the batch has not met, on a limit
			// that it has.
			it = p.items[p.used]
			p.used++
			*it = item{limit: h.Limit, id: id, n: 1, cost: h.Cost}
			p.latest[id] = it
			g.items = append(g.items, it)
			c.places = append(c.places, place{item: it})
		}
		if len(c.Hits) > 1 {
			markSeveral(p, c)
		}
	}
}

// markSeveral marks the items of a call of several hits.
func markSeveral(p *plan, c *Call) {
	p.several = true
	for i := range c.places {
		if it := c.places[i].item; it.kind == take {
			it.several = true
			if c.unusual {
				p.latest[it.id].several = true // the call may look at the row, too
			}
		}
	}
}

// addUnusual plans a call that gives back, or looks.
func addUnusual(p *plan, c *Call) {
	probe := false
	for i := range c.Hits {
		if c.Hits[i].Cost > capacity(c.Hits[i].Limit) {
			probe = true // it can never pass, so nothing is to be charged
		}
	}
	for i := range c.Hits {
		h := &c.Hits[i]
		id := rowOf(h)
		switch {
		case c.reset:
			c.places = append(c.places, putHit(p, reset, h.Limit, id, 0, claim{}))
		case c.internal:
			c.places = append(c.places, putHit(p, refund, h.Limit, id, -h.Cost, c.claims[i]))
		case h.Cost < 0 && !h.Peek:
			given := putHit(p, refund, h.Limit, id, givenBack(h.Cost), claim{})
			looked := putHit(p, peek, h.Limit, id, 0, claim{})
			looked.before = given.item
			c.places = append(c.places, looked)
		case probe || h.Peek || h.Cost == 0:
			c.places = append(c.places, putHit(p, peek, h.Limit, id, 0, claim{}))
		default:
			c.places = append(c.places, putHit(p, take, h.Limit, id, h.Cost, claim{}))
		}
	}
}

// putHit finds or makes the item for a hit.
func putHit(p *plan, k kind, l *Limit, id rowKey, cost int64, c claim) place {
	before := p.latest[id]
	wave := 0
	if before != nil {
		if at, ok := joined(before, k, l, cost, c); ok {
			return at
		}
		wave = before.wave + 1
	}
	if p.used == len(p.items) {
		p.items = append(p.items, &item{})
	}
	it := p.items[p.used]
	p.used++
	*it = item{kind: k, limit: l, id: id, wave: wave, n: 1, cost: cost, claim: c, several: before != nil && before.several}
	p.latest[id] = it
	g := groupOf(p, it)
	if k == take && wave == 0 {
		p.recent[l] = g
	}
	g.items = append(g.items, it)
	return place{item: it}
}

// joined adds a hit to the row's latest item, if they are alike.
func joined(before *item, k kind, l *Limit, cost int64, c claim) (place, bool) {
	if before.kind != k || before.claim != c || !sameLimit(before.limit, l) {
		return place{}, false
	}
	switch {
	case k == refund:
		before.cost += cost
		return place{item: before}, true
	case k == peek || k == reset:
		return place{item: before}, true
	case before.cost == cost:
		before.n++
		return place{item: before, nth: before.n - 1}, true
	}
	return place{}, false
}

// groupOf returns the statement that an item belongs to.
func groupOf(p *plan, it *item) *group {
	key := statementKey{it.kind, stepsOf(it.limit), it.limit.Durable, it.limit.SynchronousCommit}
	for len(p.waves) <= it.wave {
		if len(p.waves) < cap(p.waves) {
			p.waves = p.waves[:len(p.waves)+1]
		} else {
			p.waves = append(p.waves, []*group(nil)) // Yaegi appends no bare nil
		}
	}
	for _, g := range p.waves[it.wave] {
		if g.statementKey == key {
			return g
		}
	}
	g := nextGroup(p, key)
	p.waves[it.wave] = append(p.waves[it.wave], g)
	return g
}

// nextGroup returns a group that the plan has not used yet, empty.
func nextGroup(p *plan, key statementKey) *group {
	if p.taken == len(p.groups) {
		p.groups = append(p.groups, newGroup())
	}
	g := p.groups[p.taken]
	p.taken++
	g.begin(key)
	return g
}

// sameLimit reports whether two limits decide alike; prefix and table are the
// row's.
func sameLimit(a, b *Limit) bool {
	return a == b || a.Algorithm == b.Algorithm && a.Events == b.Events && a.Window == b.Window &&
		capacity(a) == capacity(b) && a.Calendar == b.Calendar && a.Zone == b.Zone && a.SynchronousCommit == b.SynchronousCommit
}

// write writes the plan out as statements, in the order in which they are to
// run. A now of 0 leaves the clock to the server.
func (p *plan) write(texts *statements, now int64) []*Statement {
	for _, wave := range p.waves {
		for _, g := range wave {
			g.write(texts, now)
			p.statements = append(p.statements, &g.statement)
		}
	}
	return p.statements
}

// dataException is how the SQLSTATEs begin of errors that are about a value.
const dataException = "22"

// takeApart returns statements of one item each for those that the server refused
// because of a value, such as a character that the database's encoding does not
// have, or a time zone that the server does not know: one client's key must not
// be the end of everybody's decision.
func (p *plan) takeApart(texts *statements, now int64) []*Statement {
	var statements []*Statement
	var apart []*group
	for _, wave := range p.waves {
		for _, g := range wave {
			if len(g.items) < 2 || !strings.HasPrefix(g.statement.Code, dataException) {
				continue
			}
			for _, it := range g.items {
				it.answered = false
				it.granted = 0
				one := nextGroup(p, g.statementKey)
				one.items = append(one.items, it)
				one.write(texts, now)
				statements = append(statements, &one.statement)
				apart = append(apart, one)
			}
			g.items = g.items[:0]
		}
	}
	if len(apart) > 0 {
		p.waves = append(p.waves, apart)
	}
	return statements
}

// close takes over what became of the statements.
func (p *plan) close() {
	for _, wave := range p.waves {
		for _, g := range wave {
			closeGroup(p, g)
		}
	}
}

func closeGroup(p *plan, g *group) {
	err := g.statement.Err
	asked := g.kind == take || g.kind == peek
	for _, it := range g.items {
		if err != nil {
			it.err = err
			it.granted = 0
		} else if asked && !it.answered {
			it.err = errNoAnswer
		}
		if it.now > p.now {
			p.now = it.now
		}
	}
	if err == nil && g.kind == take {
		lookAll(g.items)
	}
}
