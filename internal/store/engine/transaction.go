package engine

import (
	"errors"
	"sort"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Requests of several hits are charged all together or not at all. The charges of all such requests of a
// batch travel in one pipeline with a single Sync, so that the server runs them in one implicit transaction.
// If a row grants less than requested, its statement changes a setting of the transaction. The last statement
// of the transaction then fails on purpose, so the server rolls all of it back. No lock is held across a
// round trip, and no other transaction ever sees a refused request's charges.
//
// After such a failure, the engine reads the rows without a lock, and decides the requests in memory, in the
// order of their arrival, with the Go steps (simulate). It sends the charges of the passing requests, and the
// refunds of all requests, in another transaction. If this transaction succeeds, all requests are decided. If
// it fails, another transaction has charged a row in between, and the engine reads and decides again. Each
// failure means that another transaction succeeded, so the processes together make progress.
//
// All transactions lock rows in the same order: by table, by algorithm, charges before refunds, and within a
// statement by prefix and key. A stage after the first (see plan) has only rows that an earlier stage has
// locked. So transactions do not deadlock, unless two processes use different algorithms on one row. After a
// deadlock, the server rolls one transaction back, and server.run retries it.
//
// A transaction on a row that has refused lately begins with the reads, because a failure costs two more
// round trips and a line in the server's log.

// phase is the purpose of the next round trip of a transaction:
//
//	charging → the charges took effect: the requests are finished
//	           a row granted too little, so nothing was charged: peeking
//	peeking  → the requests are decided in memory: charging, for those that pass and for refunds, or if
//	           there are none of either, all requests are finished
//
// If a statement reached its lock timeout, the requests wait for the lock in another round. If a statement
// failed for another reason, or after maxRoundTrips, each request gets its own transaction. A single request
// gets the error.
type phase uint8

const (
	charging phase = iota // charges and refunds the rows, if all charged ones have enough left
	peeking               // reads the rows without a lock
)

// transaction decides requests of several hits, all or nothing.
type transaction struct {
	work       *work
	lockWait   time.Duration
	requests   []*request // the undecided requests, in the order of arrival
	phase      phase
	roundTrips int   // round trips so far
	plan       *plan // the last round trip's plan
	statements []*pgdb.Statement
	check      pgdb.Statement // the statement after the charges
	err        error          // the reason why the requests are not decided together, or nil
	oneByOne   bool           // each entry has its own statement, so that a failure shows the locked row
}

// maxRoundTrips bounds the round trips of a transaction. Only a very busy row reaches the bound, because for
// each failure another transaction has succeeded.
const maxRoundTrips = 100

// newTransactions returns transactions for requests of several hits: one for each request if separate is set,
// or one for all. oneByOne is that of transaction.
func (w *work) newTransactions(requests []*request, lockWait time.Duration,
	separate, oneByOne bool) []*transaction {
	var transactions []*transaction
	for len(requests) > 0 {
		n := len(requests)
		if separate {
			n = 1
		}
		t := &transaction{work: w, lockWait: lockWait, requests: requests[:n], oneByOne: oneByOne}
		t.begin()
		transactions = append(transactions, t)
		requests = requests[n:]
	}
	return transactions
}

// begin sets the first state: peeking if a hit is not a plain charge or a row has refused lately, otherwise
// charging.
func (t *transaction) begin() {
	var rows []*lease.Cached
	for _, r := range t.requests {
		r.passes = true
		r.refusals = nil
		hits := r.Hits
		r.Rows = lease.Find(t.work.engine.rows, hits, r.Rows[:0]) // a row may have refused meanwhile
		rows = append(rows, r.Rows...)
		for i := range hits {
			h := &hits[i]
			if h.Peek || h.Cost < 1 || (h.Cost > h.Limit.Events || h.Limit.Burst > 0) && h.Cost > 1 &&
				h.Cost > h.Limit.Capacity() {
				t.phase = peeking
			}
		}
	}
	if lease.RefusedLately(t.work.engine.rows, rows) {
		t.phase = peeking
	}
}

// write returns the statements of the next round trip.
func (t *transaction) write() []*pgdb.Statement {
	p := newPlan(t.work.buffers, len(t.requests), t.oneByOne)
	t.plan = p
	t.check = pgdb.Statement{SQL: statement.Check}
	if t.phase == peeking {
		for _, r := range t.requests {
			for i := range r.Hits {
				h := &r.Hits[i]
				addEntry(p, newEntry(statement.Peek, h, 0))
			}
		}
		t.statements = p.write(t.work.engine.texts, t.work.now, t.lockWait)
		return t.statements
	}
	p.allOrNothing = true
	p.sync = needsSync(t.requests)
	if t.roundTrips == 0 {
		addRequestsInline(p, t.requests) // all hits are plain charges
	} else {
		for _, r := range t.requests {
			addCharges(p, r)
		}
	}
	sortGroups(p.groups)
	if p.holds {
		if t.err = t.work.allocateSlots(p); t.err != nil {
			return nil
		}
	}
	t.statements = p.write(t.work.engine.texts, t.work.now, t.lockWait)
	for _, s := range t.statements {
		s.Joined = true
	}
	t.statements = append(t.statements, &t.check)
	return t.statements
}

// rememberUsedUp remembers a refusal of the rows of a committed plan that cannot grant another hit of the
// same cost. It leaves out rows with leases, because the lease of this process may grant the hit.
func (w *work) rememberUsedUp(p *plan) {
	for _, e := range p.entries {
		if l := e.view.Limit; e.kind == statement.Charge && e.view.Free < e.cost && l.Lease <= 0 {
			passes := algorithm.Of(l).Passes(l, &e.view.Row, e.view.Now, e.cost)
			lease.RememberRefusal(w.engine.rows, e.id, &e.view, e.cost,
				algorithm.RetryAfter(passes-e.view.Now), w.sequence)
		}
	}
}

// needsSync reports whether the commit of requests waits for the disk.
func needsSync(requests []*request) bool {
	for _, r := range requests {
		hits := r.Hits
		for i := range hits {
			if hits[i].Limit.AwaitsDisk() && (r.passes || hits[i].Cost < 0) {
				return true
			}
		}
	}
	return false
}

// addCharges plans the refunds of a request and, if it passes, its charges. Hits that charge nothing have no
// entry.
func addCharges(p *plan, r *request) {
	r.positions = r.positions[:0]
	for i := range r.Hits {
		h := &r.Hits[i]
		switch {
		case h.Cost < 0:
			e := addEntry(p, newEntry(statement.Refund, h, algorithm.Refunded(h))).entry
			r.positions = append(r.positions, position{refund: e})
		case r.passes && !h.Peek:
			r.positions = append(r.positions, addEntry(p, newEntry(statement.Charge, h, h.Cost)))
		default:
			r.positions = append(r.positions, position{})
		}
	}
}

// sortGroups sorts statements in the order in which all processes lock rows: by table, algorithm and kind,
// and with oneByOne by prefix and key.
func sortGroups(groups []*group) {
	sort.SliceStable(groups, func(i, j int) bool {
		a, b := groups[i], groups[j]
		if a.key.Durable != b.key.Durable {
			return b.key.Durable
		}
		if a.key.Definition != b.key.Definition {
			return a.key.Definition.Name < b.key.Definition.Name
		}
		if a.key.Kind != b.key.Kind {
			return a.key.Kind < b.key.Kind
		}
		if x, y := a.entries[0].id, b.entries[0].id; x.Prefix != y.Prefix {
			return x.Prefix < y.Prefix
		}
		return a.entries[0].id.Key < b.entries[0].id.Key
	})
}

// apply reads the results and finishes the decided requests. For the other requests, it returns further
// transactions or, after a lock timeout, the requests for another round.
func (t *transaction) apply() (next []*transaction, toRepeat []*request) {
	w := t.work
	goesOn := false
	if t.err == nil {
		t.plan.read()
		waited := w.recordLocks(t.plan)
		if t.err = t.failure(); t.err == nil {
			goesOn, t.err = t.advance()
		} else if waited {
			return nil, t.requests
		}
	}
	switch {
	case goesOn:
		return []*transaction{t}, nil
	case t.err != nil && len(t.requests) > 1: // one transaction for each, because one may fail all
		return w.newTransactions(t.requests, t.lockWait, true, t.oneByOne), nil
	case t.err != nil:
		w.clearRefunded(t.requests...)
		w.finish(t.requests, t.err)
	}
	return nil, nil
}

// advance ends a phase whose statements have not failed, and reports whether another one follows. Without one
// and without an error, it has finished the requests.
func (t *transaction) advance() (bool, error) {
	w := t.work
	p := t.plan
	if t.phase == charging && t.check.Err == nil {
		w.applyRows(p)
		w.rememberUsedUp(p)
		if p.holds {
			w.acquireSlots(t.requests)
		}
		decideGranted(t.requests)
		w.clearRefunded(t.requests...)
		for _, r := range t.requests {
			if len(r.Decisions) < len(r.positions) {
				w.finish([]*request{r}, errNoAnswer) // statement.Check should have failed
			}
		}
		w.finishDecided(t.requests)
		return false, nil
	}
	if t.roundTrips++; t.roundTrips == maxRoundTrips {
		return false, ratelimit.ErrTimeout
	}
	if t.phase == charging {
		atomic.AddInt64(&w.engine.stats[RolledBack], 1)
		t.phase = peeking
		return true, nil
	}
	rows := peekedRows(p)
	if rows == nil {
		return false, ratelimit.ErrTimeout
	}
	t.phase = charging
	return t.simulate(rows), nil
}

// peekedRows returns the rows of a plan. It returns nil if limits of different algorithms have one row: each
// algorithm reads its own columns, so the simulation cannot decide them together.
func peekedRows(p *plan) map[lease.RowID]*algorithm.View {
	rows := map[lease.RowID]*algorithm.View{}
	for _, e := range p.entries {
		if other := rows[e.id]; other != nil && algorithm.Of(other.Limit) != algorithm.Of(e.view.Limit) {
			return nil
		}
		rows[e.id] = &e.view
	}
	return rows
}

// simulate decides the requests in memory, one after the other, and reports whether any of them charges or
// refunds. If none does, it finishes the requests.
func (t *transaction) simulate(rows map[lease.RowID]*algorithm.View) bool {
	charges := false
	var hitRows []*algorithm.Row
	var times []int64
	for _, r := range t.requests {
		hits := r.Hits
		hitRows = hitRows[:0]
		times = times[:0]
		for i := range hits {
			s := rows[rowOf(&hits[i])]
			hitRows = append(hitRows, &s.Row)
			times = append(times, s.Now)
		}
		decisions := make([]ratelimit.Decision, len(hits))
		r.passes = algorithm.Decide(hits, hitRows, times, decisions)
		r.Decisions = decisions
		r.refusals = nil
		for i := range hits {
			if !decisions[i].Allowed && !hits[i].Peek {
				view := algorithm.View{Limit: hits[i].Limit, Row: *hitRows[i], Now: times[i]}
				r.refusals = append(r.refusals, refusal{view, i})
			}
			charges = charges || hits[i].Cost < 0 || r.passes && !hits[i].Peek
		}
	}
	if !charges {
		t.work.finishDecided(t.requests)
	}
	return charges
}

// failure returns the first error of a statement that failed by itself or returned no row for an entry.
func (t *transaction) failure() error {
	for _, s := range t.statements {
		if s.Err != nil && !errors.Is(s.Err, pgdb.ErrRolledBack) && !statement.IsOnPurpose(s) {
			return s.Err
		}
	}
	for _, e := range t.plan.entries {
		if e.err != nil && !errors.Is(e.err, pgdb.ErrRolledBack) {
			return e.err
		}
	}
	return nil
}

// finishDecided finishes requests with the decisions that they have, unless they are finished already.
func (w *work) finishDecided(requests []*request) {
	for _, r := range requests {
		if r.finished {
			continue
		}
		if len(r.Rows) > 0 {
			w.addLeasedUnits(r.Call)
		}
		for i := range r.refusals {
			refused := &r.refusals[i]
			id := rowOf(&r.Hits[refused.hit])
			lease.RememberRefusal(w.engine.rows, id, &refused.view, r.Hits[refused.hit].Cost,
				r.Decisions[refused.hit].RetryAfter, w.sequence)
			if refused.view.Limit.Lease > 0 { // with the refunded units, a retry may pass
				lease.EndLease(w.engine.rows, id)
			}
		}
	}
	w.finish(requests, nil)
}
