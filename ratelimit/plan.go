package ratelimit

import "sync"

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

	items  []*item  // those in use, then those free
	used   int      // items in use
	groups []*group // likewise
	taken  int
}

// rowKey names a row of either table.
type rowKey struct {
	durable     bool
	prefix, key string
}

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

	answered bool
	granted  int64
	given    int64 // how much of granted·cost is given back
	now      int64
	row      row
	err      error
}

// plans are free for the next batch.
var plans = sync.Pool{New: func() any { return &plan{latest: map[rowKey]*item{}} }}

// newPlan returns an empty plan, to be freed when its batch is concluded.
func newPlan() *plan { return plans.Get().(*plan) }

func (p *plan) free() {
	for id := range p.latest {
		delete(p.latest, id)
	}
	for i := range p.waves {
		p.waves[i] = p.waves[i][:0]
	}
	p.waves, p.statements = p.waves[:0], p.statements[:0]
	p.now, p.used, p.taken = 0, 0, 0
	plans.Put(p)
}

// add plans a call.
func (p *plan) add(c *call) {
	c.places = c.places[:0]
	probe := false
	for i := range c.hits {
		if c.hits[i].Cost > c.hits[i].Limit.Capacity() {
			probe = true // it can never pass, so nothing is to be charged
		}
	}
	for i := range c.hits {
		h := &c.hits[i]
		id := rowKey{h.Limit.Durable, h.Limit.Prefix, h.Key}
		switch {
		case c.reset:
			c.places = append(c.places, p.place(reset, h.Limit, id, 0, claim{}))
		case c.internal:
			c.places = append(c.places, p.place(refund, h.Limit, id, -h.Cost, c.claims[i]))
		case probe || h.Peek || h.Cost == 0:
			c.places = append(c.places, p.place(peek, h.Limit, id, 0, claim{}))
		case h.Cost < 0:
			p.place(refund, h.Limit, id, -h.Cost, claim{})
			c.places = append(c.places, p.place(peek, h.Limit, id, 0, claim{}))
		default:
			c.places = append(c.places, p.place(take, h.Limit, id, h.Cost, claim{}))
		}
	}
}

// place finds or makes the item for a hit.
func (p *plan) place(k kind, l *Limit, id rowKey, cost int64, c claim) place {
	before := p.latest[id]
	if before != nil && before.kind == k && before.claim == c && sameLimit(before.limit, l) {
		switch {
		case k == refund:
			before.cost += cost
			return place{before, 0}
		case k == peek || k == reset:
			return place{before, 0}
		case k == take && before.cost == cost:
			before.n++
			return place{before, before.n - 1}
		}
	}
	it := p.item()
	*it = item{kind: k, limit: l, id: id, n: 1, cost: cost, claim: c}
	if before != nil {
		it.wave = before.wave + 1
	}
	p.latest[id] = it
	g := p.group(it)
	g.items = append(g.items, it)
	return place{it, 0}
}

// item returns a free item.
func (p *plan) item() *item {
	if p.used == len(p.items) {
		p.items = append(p.items, &item{})
	}
	p.used++
	return p.items[p.used-1]
}

// group returns the statement that an item belongs to.
func (p *plan) group(it *item) *group {
	key := statementKey{it.kind, it.limit.steps(), it.limit.Durable, it.limit.SynchronousCommit}
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
	if p.taken == len(p.groups) {
		p.groups = append(p.groups, newGroup())
	}
	g := p.groups[p.taken]
	p.taken++
	g.begin(key)
	p.waves[it.wave] = append(p.waves[it.wave], g)
	return g
}

// sameLimit reports whether two limits decide alike; prefix and table are the
// row's.
func sameLimit(a, b *Limit) bool {
	return a == b || a.Algorithm == b.Algorithm && a.Events == b.Events && a.Window == b.Window &&
		a.Capacity() == b.Capacity() && a.Calendar == b.Calendar && a.Zone == b.Zone && a.SynchronousCommit == b.SynchronousCommit
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

// close takes over what became of the statements.
func (p *plan) close() {
	for _, wave := range p.waves {
		for _, g := range wave {
			for _, it := range g.items {
				switch {
				case g.statement.Err != nil:
					it.err = g.statement.Err
				case !it.answered && g.statement.Row != nil:
					it.err = errNoAnswer
				}
				p.now = larger(p.now, it.now)
			}
		}
	}
}
