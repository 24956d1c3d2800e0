package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
	"github.com/pgratelimit/pg-ratelimit/internal/store/settle"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A call is all that travels in a batch. Callers wait for most calls: a take of one hit, a take of several hits
// together, a look, a refund, a reset (batch.Call). The others are the store's own, for which nobody waits (own.Call).
// openKinds has the table of their kinds, which says how they end. The kinds say what is done to a row, and when.

// kind is a kind of own calls.
type kind struct {
	*own.Kind
	// end ends the calls of a batch, which have their results or errors. err is why the statements of the batch have no
	// results, or nil: it is not known then what they did.
	end func(calls []*own.Call, err error)
}

// ownStatements are the statements that kinds have for themselves.
var ownStatements = []*own.Statement{slots.Leave}

// openKinds makes the packages that have own calls, and the table of their kinds.
func (s *Store) openKinds(o Options) {
	e := s.engine
	d := &own.Database{
		DB: e.server.db, Closing: e.server.closing, Unavailable: e.server.health.Unavailable, Report: o.report, Run: e.server.run,
		Send: func() { batch.Enter(s.leasing, batch.NewCall()) }, Busy: func() bool { return batch.Busy(s.leasing) },
	}
	e.waiting = own.NewWaiting(d)
	processes := e.texts.tables[processesTable]
	guard := ""
	if processes.Guard != "" {
		guard = "SELECT true" + guardedSQL + processes.Guard
	}
	e.slots = slots.New(d, e.waiting, s.leasing, processes.Name, guard)
	e.settlements = settle.New(e.waiting, o.report, func(units, charged int64, lost bool) {
		if e.learns != nil {
			e.learns.Charged(units, charged, lost)
		}
	})
	e.kinds = append(e.kinds, kind{e.slots.Leaving, e.slots.End}, kind{e.settlements.Adjust, e.settlements.End},
		kind{e.settlements.ChargeLocal, e.settlements.End}, kind{refundUnits, func(_ []*own.Call, _ error) {}})
}

// Settle implements chain.Store.
func (s *Store) Settle(h *batch.Settlement) {
	if h.Source == ratelimit.FromPostgres || h.Source == ratelimit.FromLease {
		s.engine.settlements.Add(h)
	}
}

// Answers implements chain.Store. All subjects are in one place.
func (s *Store) Answers(_ string) bool { return s.engine.server.health.Unavailable() == nil }

// Charge implements chain.Store.
func (s *Store) Charge(_ string, row lease.RowID, l *ratelimit.Limit, units int64) {
	s.engine.settlements.Charge(row, l, units)
}

// Held implements chain.Store.
func (s *Store) Held(row lease.RowID) int64 { return s.engine.slots.CountOf(row) }

// closeTimeout bounds how long Close tries to send what waits.
const closeTimeout = time.Second

// closeKinds has sent what the packages still have to send, before the store is closed.
func (s *Store) closeKinds() {
	s.closeLeases(closeTimeout)
	s.engine.waiting.SendAll(closeTimeout)
	s.engine.slots.Close()
}

// Idle implements own.Batch.
func (d *dispatch) Idle() bool {
	for _, r := range d.gathered {
		if len(r.call.Hits) > 0 {
			return false
		}
	}
	return true
}

// Locked implements own.Batch.
func (d *dispatch) Locked(row lease.RowID) bool { return lease.HasTimedOut(d.engine.rows, row) }

// ownCall is an own call of a batch, and where its result is.
type ownCall struct {
	*own.Call
	at position
}

// addOwn plans an own call. One that has failed has a statement of its own.
func addOwn(p *plan, c *own.Call) position {
	before := p.latest[c.Row]
	stage := 0
	if before != nil {
		stage = before.stage + 1
	}
	oneByOne := p.oneByOne
	p.oneByOne = !c.Since.IsZero()
	at := position{}
	switch {
	case c.Kind.Statement == own.Charge:
		at = add(p, take, c.Limit, c.Row, 1)
		at.entry.n += c.N - 1
	case c.Kind.Statement == own.Adjust && before != nil && before.kind == refund && before.claim == c.Claim:
		before.cost = algorithm.AddRefund(before.cost, c.N)
		at.entry = before
	case c.Kind.Statement == own.Adjust:
		at = add(p, refund, c.Limit, c.Row, c.N)
		at.entry.claim = c.Claim
	default: // a row can have several calls in the statement
		at.entry = nextEntry(p)
		*at.entry = entry{kind: kindOf(c.Kind.Statement), id: c.Row, stage: stage, n: c.N, first: c.Number}
		g := groupFor(p, stage, statementKey{kind: at.entry.kind, durable: c.Row.Durable}, p.oneByOne)
		g.entries = append(g.entries, at.entry)
	}
	p.oneByOne = oneByOne
	return at
}

// kindOf is the kind of a statement of ownStatements.
func kindOf(s *own.Statement) statementKind {
	k := firstOwn
	for ownStatements[k-firstOwn] != s {
		k++
	}
	return k
}

// endOwn ends own calls, each once. err is why the pipeline has no results, or nil.
func (d *dispatch) endOwn(err error) {
	for _, k := range d.engine.kinds {
		var calls []*own.Call
		var left []*ownCall
		for _, c := range d.own {
			if c.Kind != k.Kind {
				left = append(left, c)
				continue
			}
			calls = append(calls, c.Call)
			if c.Err = err; err == nil {
				c.result()
			}
			if k.Statement == own.Adjust && c.N > 0 {
				lease.Clear(d.engine.rows, c.Row) // the row may have more again
			}
		}
		if d.own = left; len(calls) > 0 {
			k.end(calls, err)
		}
	}
}

// result gives a call its result. Of an entry, a row grants first what was planned first.
func (c *ownCall) result() {
	e := c.at.entry
	c.Err = e.err
	c.View = &e.view
	if c.Granted = e.granted - c.at.nth; c.Granted < 0 {
		c.Granted = 0
	}
	if c.Granted > c.N {
		c.Granted = c.N
	}
}
