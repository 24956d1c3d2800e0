package engine

import (
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// plan turns the hits of requests into statements. Equal hits on one row are one entry. A row occurs at most
// once in a statement, so a hit that cannot join the row's latest entry goes into a later stage. The
// statements of a stage run after the statements of earlier stages. So the hits on a row are decided in the
// order in which they were added, and all statements lock rows in the same order.
type plan struct {
	groups  []*group
	stages  int // the number of stages
	entries []*entry
	buffers *buffers // for entries
	latest  map[lease.RowID]*entry
	recent  map[*ratelimit.Limit]*group // the groups of charges in the first stage

	allOrNothing bool // the plan is a transaction, which fails if a row grants less than an entry asks for
	sync         bool // the commit of the transaction waits for the disk
	holds        bool // requests take slots or reserve units
	oneByOne     bool // each entry has a statement of its own
	remembered   bool // an entry has a remembered row
}

// newPlan returns an empty plan with room for a number of entries.
func newPlan(b *buffers, entries int, oneByOne bool) *plan {
	return &plan{entries: make([]*entry, 0, entries), latest: make(map[lease.RowID]*entry, entries),
		recent: map[*ratelimit.Limit]*group{}, buffers: b, oneByOne: oneByOne}
}

// addRequestsInline plans the requests. It is addEntry for each hit, with the frequent case inline in one
// loop: with a call for each hit, an exact request in Traefik takes 1.2 times the processor time.
func addRequestsInline(p *plan, requests []*request) {
	var limit *ratelimit.Limit // the previous hit's limit
	var g *group               // the charges of limit in the first stage, or nil
	var row *lease.Cached      // the hit's remembered row, or nil
	b := p.buffers
	for _, r := range requests {
		r.positions = r.positions[:0]
		c := r.Call
		for i := range c.Hits {
			h := &c.Hits[i]
			// A limit that reserves has no Burst, so that Events is its capacity.
			if c.Reset || h.Peek || h.Cost < 1 || h.Limit.Reserves && h.Cost > h.Limit.Events ||
				h.Cost > 1 && !h.Limit.Reserves && h.Cost > h.Limit.Capacity() {
				r.positions = append(r.positions, addUnusual(p, r, h))
				continue
			}
			id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key}
			if h.Limit.CountedAs != "" { // as lease.RowOf does, whose call the interpreter would pay for
				id.Prefix = h.Limit.CountedAs
			}
			e := p.latest[id]
			row = nil
			if i < len(c.Rows) && c.Rows[i] != nil {
				row = c.Rows[i]
				p.remembered = true
			}
			if e != nil && e.view.Limit == h.Limit && e.cost == h.Cost && e.kind == statement.Charge &&
				e.sums == nil {
				e.n++
				e.row = row
				r.positions = append(r.positions, position{entry: e, nth: e.n - 1})
				continue
			}
			if h.Limit != limit {
				limit = h.Limit
				g = p.recent[limit]
			}
			if e != nil || g == nil {
				pos := addEntry(p, newEntry(statement.Charge, h, h.Cost))
				pos.entry.row = row
				r.positions = append(r.positions, pos)
				limit = nil // look it up again, because addEntry may have added its group
				continue
			}
			// This inlines addEntry for a new row of a limit that the plan has.
			b.entries = append(b.entries,
				entry{id: id, row: row, n: 1, cost: h.Cost, view: algorithm.View{Limit: h.Limit}})
			e = &b.entries[len(b.entries)-1] // stays valid if entries grows: the plan has only pointers
			if h.Limit.Reserves {
				e.sums = []int64{0, h.Cost}
				e.cost = 1
			}
			p.entries = append(p.entries, e)
			p.latest[id] = e
			g.entries = append(g.entries, e)
			r.positions = append(r.positions, position{entry: e})
		}
	}
}

// addUnusual plans a hit that does not simply charge.
func addUnusual(p *plan, r *request, h *ratelimit.Hit) position {
	switch {
	case r.Reset:
		return addEntry(p, newEntry(statement.Reset, h, 0))
	case h.Cost < 0 && !r.refunded:
		// One entry adds up the refunds on a row, and one peek after it reads the decision for all of them,
		// because two statements for each refund would take too long.
		if last := p.latest[rowOf(h)]; last != nil && last.refund != nil && last.view.Limit.Equal(h.Limit) {
			last.refund.cost = algorithm.AddRefund(last.refund.cost, algorithm.Refunded(h))
			return position{entry: last, refund: last.refund}
		}
		refundEntry := addEntry(p, newEntry(statement.Refund, h, algorithm.Refunded(h))).entry
		pos := addEntry(p, newEntry(statement.Peek, h, 0))
		pos.entry.refund = refundEntry
		pos.refund = refundEntry
		return pos
	}
	return addEntry(p, newEntry(statement.Peek, h, 0)) // a peek, or a hit that can never pass
}

// newEntry returns an entry of one hit with a stored key.
func newEntry(k statement.Kind, h *ratelimit.Hit, cost int64) *entry {
	e := &entry{kind: k, id: lease.RowOf(h.Limit, h.Key), n: 1, cost: cost,
		view: algorithm.View{Limit: h.Limit}}
	if k == statement.Charge && h.Limit.Reserves {
		e.sums = []int64{0, cost}
		e.cost = 1
	}
	return e
}

// addEntry adds an entry of one hit to a plan, or the hit to the row's latest entry.
func addEntry(p *plan, e *entry) position {
	if last := p.latest[e.id]; last != nil {
		if pos := join(last, e); pos.entry != nil {
			return pos
		}
		e.stage = last.stage + 1
	}
	l := e.view.Limit
	isolated := p.oneByOne || e.isolated
	p.entries = append(p.entries, e)
	p.latest[e.id] = e
	g := groupFor(p, e.stage, statement.Key{Kind: e.kind, Definition: algorithm.Of(l), Durable: l.Durable,
		Sync: p.sync || l.AwaitsDisk(), AllOrNothing: p.allOrNothing && e.kind == statement.Charge}, isolated)
	if e.kind == statement.Charge && e.stage == 0 && !isolated {
		p.recent[l] = g
	}
	g.entries = append(g.entries, e)
	return position{entry: e}
}

// join adds the hit of e to last, the row's latest entry, and returns its position. It returns no position if
// one entry cannot have both.
func join(last, e *entry) position {
	if last.kind != e.kind || last.window != e.window || !last.view.Limit.Equal(e.view.Limit) {
		return position{}
	}
	switch {
	case e.kind == statement.Refund:
		last.cost = algorithm.AddRefund(last.cost, e.cost)
		if last.claim == 0 {
			last.claim = e.claim
		}
		return position{entry: last}
	case e.kind == statement.Peek || e.kind == statement.Reset:
		last.refund = nil // a later refund gets another entry, because this hit must not see it
		return position{entry: last}
	case last.cost == e.cost:
		last.n++
		if e.sums != nil {
			last.sums = append(last.sums, last.sums[last.n-1]+e.sums[1])
		}
		return position{entry: last, nth: last.n - 1}
	}
	return position{}
}

// groupFor returns the group in a stage for another entry. If isolated is set, the entry gets its own group.
func groupFor(p *plan, stage int, key statement.Key, isolated bool) *group {
	if !isolated {
		for _, g := range p.groups {
			if g.stage == stage && g.key == key && !g.isolated {
				return g
			}
		}
	}
	g := &group{key: key, stage: stage, isolated: isolated,
		takesSlots: key.Kind == statement.Charge && key.Definition == inFlight,
		reserves:   key.Kind == statement.Charge && key.Definition.Reserves}
	p.groups = append(p.groups, g)
	p.holds = p.holds || g.takesSlots || g.reserves
	if p.stages <= stage {
		p.stages = stage + 1
	}
	return g
}

// write returns the plan's statements in the order in which they run, without those that cannot be sent. A
// statement that must read by the primary key comes after Texts.Index. If a row is locked, a statement of
// each stage may wait for it, and a batch has no time for a full lockWait in each stage.
func (p *plan) write(texts *statement.Texts, now int64, lockWait time.Duration) []*pgdb.Statement {
	clock := statement.Clock(now, lockWait)
	later := clock
	if p.stages > 1 {
		groups := p.groups
		sort.SliceStable(groups, func(i, j int) bool { return groups[i].stage < groups[j].stage })
		later = statement.Clock(now, lockWait/time.Duration(p.stages))
	}
	var pipeline []*pgdb.Statement
	for _, g := range p.groups {
		if g.failure != nil {
			g.statement.Err = g.failure
			continue
		}
		if g.stage > 0 {
			clock = later
		}
		key := g.key
		key.Uniform = (key.Kind == statement.Charge || key.Kind == statement.Settle) && !g.takesSlots
		keys := make([]string, len(g.entries))
		first := g.entries[0]
		for i, e := range g.entries {
			keys[i] = e.id.Key
			if e.view.Limit != first.view.Limit || e.cost != first.cost {
				key.Uniform = false
			}
		}
		if key.Uniform && len(keys) > 1 {
			g.sort(keys)
		}
		text := texts.Of(key)
		prefix := statement.Parameter{Name: "prefix", Type: "text"}
		args := append(make([]any, 0, 8), clock, argument(g.entries, prefix, key.Uniform), keys)
		for _, parameter := range text.Parameters {
			args = append(args, argument(g.entries, parameter, key.Uniform && !statement.Varies(parameter)))
		}
		size := len(keys) * (stateColumn + key.Definition.SQL.Width) * cellSize
		g.statement = pgdb.Statement{SQL: text.SQL, Args: args, Result: make([]byte, 0, size),
			Synchronous: key.Durable && key.Sync && key.Kind != statement.Peek}
		if key.Kind == statement.Peek || (g.takesSlots || g.reserves) && texts.Guarded {
			// These charges read the processes table, so the guard of Texts.Index must have run before.
			pipeline = append(pipeline, &pgdb.Statement{SQL: texts.Index, Joined: true})
		}
		pipeline = append(pipeline, &g.statement)
	}
	return pipeline
}

// rowOf returns the row of a hit with a stored key.
func rowOf(h *ratelimit.Hit) lease.RowID { return lease.RowOf(h.Limit, h.Key) }

// entry is the operation of one statement on one row: n hits of equal cost, a peek, a refund, a reset, or a
// release of slots.
type entry struct {
	kind  statement.Kind
	id    lease.RowID
	row   *lease.Cached // for a charge: the remembered row, or nil
	stage int
	n     int64
	cost  int64

	isolated bool // the entry has a statement of its own

	leaseHits     int64 // for a charge: the part of n that charges a lease
	claim, window int64 // for the refund of a job: copies from the job; otherwise 0
	first         int64 // for a limit InFlight: the first slot; for one that reserves: the name; otherwise 0
	held          int64 // for a settlement: the units that requests hold for the name
	rest          int64 // for a settlement: the thousandths of a unit by which n is too much

	// For a charge on a limit that reserves, with cost 1: the sums of the costs of its first 0, 1 … n hits.
	sums []int64

	// The refund entry before this peek, to which later refunds of the row are added.
	refund *entry

	// The fields below are results. After a failed statement, err is set, and granted is 0.
	answered bool
	granted  int64
	view     algorithm.View // the row after the entry; Limit is set before
	err      error

	refusalKept bool // the refusal of a hit is remembered, once for all hits, because they have one cost
}

// position maps a hit to its entry. nth is its index in the equal hits of entry. For a refund, entry is the
// peek after the refund, and refund is the entry of the refund itself.
type position struct {
	entry  *entry
	nth    int64
	refund *entry
}

// request is a call of a batch while it is decided. The worker owns it.
type request struct {
	*batch.Call
	positions []position // one for each hit
	finished  bool       // the call has its decisions and is the caller's again
	refunded  bool       // a refund took effect in an earlier round, which did not read its row

	// For a request of several hits, the outcome of the simulation, see transaction.go.
	passes   bool
	refusals []refusal
}

// refusal is a row that refused a hit in the simulation.
type refusal struct {
	view algorithm.View
	hit  int // the index of the hit
}

// failure returns the first error of the entries of a request.
func failure(r *request) error {
	for i := range r.positions {
		pos := &r.positions[i]
		if pos.entry.err != nil {
			return pos.entry.err
		}
		if pos.refund != nil && pos.refund.err != nil {
			return pos.refund.err
		}
	}
	return nil
}
