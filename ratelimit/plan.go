package ratelimit

// A plan turns the calls of a batch into statements. Hits of equal cost on one
// row become one item. A row occurs once in a statement, so a hit that cannot
// join the row's latest item goes into a later wave: another statement of the
// same pipeline. Arrival order per row holds, and each statement takes its locks
// in order.
type plan struct {
	waves  [][]*group
	latest map[rowKey]*item
	now    int64 // the server's, once the statements have run
}

// rowKey names a row of either table.
type rowKey struct {
	durable     bool
	prefix, key string
}

// group is the items of one statement, and its parameters.
type group struct {
	statementKey
	items     []*item
	statement Statement
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

func newPlan() *plan { return &plan{latest: map[rowKey]*item{}} }

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
	it := &item{kind: k, limit: l, id: id, n: 1, cost: cost, claim: c}
	if before != nil {
		it.wave = before.wave + 1
	}
	p.latest[id] = it
	p.group(it)
	return place{it, 0}
}

// group adds an item to the statement that it belongs to.
func (p *plan) group(it *item) {
	key := statementKey{it.kind, it.limit.steps(), it.limit.Durable, it.limit.SynchronousCommit}
	for len(p.waves) <= it.wave {
		p.waves = append(p.waves, nil)
	}
	for _, g := range p.waves[it.wave] {
		if g.statementKey == key {
			g.items = append(g.items, it)
			return
		}
	}
	p.waves[it.wave] = append(p.waves[it.wave], &group{statementKey: key, items: []*item{it}})
}

// sameLimit reports whether two limits decide alike; prefix and table are the
// row's.
func sameLimit(a, b *Limit) bool {
	return a == b || a.Algorithm == b.Algorithm && a.Events == b.Events && a.Window == b.Window &&
		a.Capacity() == b.Capacity() && a.Calendar == b.Calendar && a.Zone == b.Zone && a.SynchronousCommit == b.SynchronousCommit
}

// statements writes the plan out, in the order in which it is to run. A now of
// 0 leaves the clock to the server.
func (p *plan) statements(texts *statements, now int64) []*Statement {
	var all []*Statement
	for _, wave := range p.waves {
		for _, g := range wave {
			g.write(texts, now)
			all = append(all, &g.statement)
		}
	}
	return all
}

// write fills in the statement of a group.
func (g *group) write(texts *statements, now int64) {
	size := len(g.items)
	prefixes, keys := make([]string, size), make([]string, size)
	for i, it := range g.items {
		prefixes[i], keys[i] = it.id.prefix, it.id.key
	}
	args := []any{nil, prefixes, keys}
	if now != 0 {
		args[0] = now
	}
	step := algorithms[g.algorithm].sql()
	switch g.kind {
	case take:
		args = append(args, g.numbers(itemN), g.numbers(itemCost), g.numbers(itemQuota), g.numbers(itemSpan))
		for _, p := range step.needs {
			args = append(args, g.need(p))
		}
	case refund:
		args = append(args, g.numbers(itemCost), g.numbers(itemQuota), g.numbers(itemSpan), g.numbers(itemEvents),
			g.numbers(itemClaimed), g.numbers(itemRoom))
	}
	g.statement = Statement{SQL: texts.steps[g.statementKey], Args: args}
	if g.kind == take || g.kind == peek {
		g.statement.Row = func(columns [][]byte) error { return g.answer(columns, step) }
	}
}

// The parameters of an item, each an array in the statement.
const (
	itemN = iota
	itemCost
	itemQuota
	itemSpan
	itemEvents
	itemClaimed
	itemRoom
)

// need is the array of a parameter that an algorithm needs.
func (g *group) need(p parameter) any {
	if p == eventsParameter {
		return g.numbers(itemEvents)
	}
	texts := make([]string, len(g.items))
	for i, it := range g.items {
		switch {
		case p == unitParameter:
			texts[i] = calendarUnits[it.limit.Calendar].sql
		case it.limit.Zone == "":
			texts[i] = "UTC"
		default:
			texts[i] = it.limit.Zone
		}
	}
	return texts
}

func (g *group) numbers(which int) []int64 {
	numbers := make([]int64, len(g.items))
	for i, it := range g.items {
		switch which {
		case itemN:
			numbers[i] = it.n
		case itemCost:
			numbers[i] = it.cost
		case itemQuota:
			numbers[i] = it.limit.Capacity()
		case itemSpan:
			numbers[i] = it.limit.window()
		case itemEvents:
			numbers[i] = it.limit.Events
		case itemClaimed:
			numbers[i] = it.claim.at
		case itemRoom:
			numbers[i] = it.claim.room
		}
	}
	return numbers
}

// answer takes in a row of the result: slot, granted, now, the state.
func (g *group) answer(columns [][]byte, step *stepSQL) error {
	if len(columns) < 3 {
		return errColumns
	}
	slot := bigint(columns[0])
	if slot < 1 || slot > int64(len(g.items)) {
		return errColumns
	}
	it := g.items[slot-1]
	it.answered = true
	it.granted = bigint(columns[1])
	it.now = timestamp(columns[2])
	step.scan(columns[3:], &it.row)
	return nil
}
