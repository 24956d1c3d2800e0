package engine

import (
	"errors"
	"sort"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Requests of several hits are charged all together or not at all. The takes of all such requests of a batch
// travel in one pipeline with a single Sync: the server runs them in one implicit transaction. If a row
// grants less than it was asked for, its statement sets a setting of the transaction. The last statement of
// the transaction then fails on purpose, so the server undoes all of it. No lock is held across a round trip,
// and no other transaction ever sees a charge of a request that is refused.
//
// The results that came before the failure say how the rows are. The store then decides the requests in
// memory, in the order of their arrival, with the Go steps (simulate). It sends the takes of those that pass
// in another transaction. When that succeeds, all requests have their answers. When it fails, another process
// has charged a row in between, and the store decides again. Each failure means that another transaction
// succeeded, so all processes make progress.
//
// The statements of a transaction lock their rows in one order everywhere: by table, by algorithm, and within
// a statement by prefix and key. A row of a later stage is locked already. So transactions do not deadlock;
// if one does (two processes may use different algorithms on one row), the server undoes it and server.run
// sends it again.
//
// Each refusal costs another round trip that way, and a line in the server's log. So a transaction on a row
// that is likely to refuse (see lease.ShouldPeek) peeks first: its first round trip reads the rows without a
// lock, the requests are decided in memory, and only those that pass are sent as takes, which decide again.

// state is the purpose of the next round trip of a transaction, or the outcome of its last one:
//
//	taking    → committed, rolledBack, lockTimeout or divided
//	peeking   → peeked, lockTimeout or divided
//	committed → the end: the requests are answered
//	rolledBack, peeked → the requests are decided in memory. If none of them charges anything, they are
//	            answered; else those that pass are taking. If the results of rolledBack do not say how the
//	            rows were, all are peeking.
//	lockTimeout → the end: the requests wait for the lock, in another round
//	divided   → one transaction for each request, each from the beginning; a single request gets the error
type state uint8

const (
	taking      state = iota // charges the rows, if all have enough left
	peeking                  // reads the rows without a lock
	committed                // the charges had their effect
	rolledBack               // a row had too little left, so that nothing was charged
	peeked                   // the rows were read
	lockTimeout              // a statement gave up waiting for a lock
	divided                  // a statement failed by itself, or the transaction had too many round trips
)

// transaction decides requests of several hits, all or nothing.
type transaction struct {
	work       *work
	settings   []int64    // see clockSQL
	requests   []*request // without an answer, in the order of arrival
	state      state
	roundTrips int   // round trips so far
	sent       int64 // lease.Now before the last round trip
	plan       *plan
	check      pgdb.Statement // the last statement of takes
	err        error          // why the statements were not sent, or nil
	oneByOne   bool           // each entry has its own statement, so that a failure shows the locked row
}

// maxRoundTrips bounds the round trips of a transaction. Another transaction has succeeded whenever one of
// them fails, so that only a very busy row reaches the bound.
const maxRoundTrips = 50

// firstTransactions returns the transactions for requests of several hits: one for all of them, or with
// oneByOne one for each.
func (d *work) firstTransactions(requests []*request, settings []int64, oneByOne bool) []*transaction {
	if oneByOne {
		return d.oneTransactionEach(requests, settings, true)
	}
	first := d.newTransaction(requests, settings, false)
	if d.shouldPeek(requests) {
		first.state = peeking
	}
	return []*transaction{first}
}

// oneTransactionEach returns a transaction for each request.
func (d *work) oneTransactionEach(requests []*request, settings []int64, oneByOne bool) []*transaction {
	var all []*transaction
	for i := range requests {
		all = append(all, d.newTransaction(requests[i:i+1], settings, oneByOne))
	}
	return all
}

// newTransaction returns a transaction in its start state.
func (d *work) newTransaction(requests []*request, settings []int64, oneByOne bool) *transaction {
	for _, r := range requests {
		r.passes = true
		r.decisions = r.decisions[:0]
		r.refusals = r.refusals[:0]
	}
	return &transaction{work: d, settings: settings, requests: requests, state: startState(requests),
		oneByOne: oneByOne}
}

// startState returns taking if all hits of the requests are simple charges, and peeking otherwise.
func startState(requests []*request) state {
	for _, r := range requests {
		hits := r.call.Hits
		for i := range hits {
			h := &hits[i]
			if h.Peek || h.Cost < 1 || h.Cost > 1 && h.Cost > h.Limit.Capacity() {
				return peeking
			}
		}
	}
	return taking
}

// write returns the statements of the next round trip.
func (t *transaction) write() []*pgdb.Statement {
	p := plans.Get().(*plan)
	t.plan = p
	p.oneByOne = t.oneByOne
	t.sent = lease.Now(t.work.store.rows)
	if t.state == peeking {
		for _, r := range t.requests {
			for i := range r.call.Hits {
				h := &r.call.Hits[i]
				add(p, peek, h.Limit, rowOf(h), 0)
			}
		}
		return p.write(t.work.store.texts, t.settings)
	}
	p.allOrNothing = true
	p.sync = needsSync(t.requests)
	if t.roundTrips == 0 {
		addRequests(p, t.requests) // all hits are simply charged
	} else {
		for _, r := range t.requests {
			addCharges(p, r)
		}
	}
	for _, stage := range p.stages {
		sortGroups(stage)
	}
	if p.inFlight {
		if t.err = t.work.allocateSlots(p); t.err != nil {
			return nil
		}
	}
	statements := p.write(t.work.store.texts, t.settings)
	for _, s := range statements {
		s.Joined = true
	}
	t.check = pgdb.Statement{SQL: checkSQL}
	return append(statements, &t.check)
}

// minPeekTime is the least time for which transactions peek at a row that has refused a request of several
// hits.
const minPeekTime = time.Second

// shouldPeek reports whether the row of any hit of requests is likely to refuse.
func (d *work) shouldPeek(requests []*request) bool {
	for _, r := range requests {
		if lease.ShouldPeek(d.store.rows, r.call.Hits) {
			return true
		}
	}
	return false
}

// expectRefusals calls lease.ExpectRefusal for the rows of a committed plan that have too little left for
// another hit of the same cost.
func (d *work) expectRefusals(p *plan) {
	for _, e := range p.entries[:p.usedEntries] {
		if e.kind == take && e.view.Free < e.cost {
			l := e.view.Limit
			lease.ExpectRefusal(d.store.rows, e.id,
				algorithm.RetryAfter(algorithm.Of(l).Passes(l, &e.view.Row, e.view.Now, e.cost)-e.view.Now))
		}
	}
}

// needsSync reports whether one of the limits that requests charge has SynchronousCommit, so that the commit
// waits for the disk.
func needsSync(requests []*request) bool {
	for _, r := range requests {
		hits := r.call.Hits
		for i := range hits {
			if hits[i].Limit.SynchronousCommit && (r.passes || hits[i].Cost < 0) {
				return true
			}
		}
	}
	return false
}

// addCharges plans the charges of a request, if it passes, and its refunds in any case. Hits that charge
// nothing have no entry.
func addCharges(p *plan, r *request) {
	r.positions = r.positions[:0]
	for i := range r.call.Hits {
		h := &r.call.Hits[i]
		switch {
		case h.Cost < 0:
			back := add(p, refund, h.Limit, rowOf(h), algorithm.Refunded(h)).entry
			r.positions = append(r.positions, position{refund: back})
		case r.passes && !h.Peek:
			r.positions = append(r.positions, add(p, take, h.Limit, rowOf(h), h.Cost))
		default:
			r.positions = append(r.positions, position{})
		}
	}
}

// sortGroups sorts the statements of a stage in the order in which all processes lock: by
// table and algorithm. Statements of one entry each come in the order of a statement of all of them.
func sortGroups(groups []*group) {
	sort.SliceStable(groups, func(i, j int) bool {
		a, b := groups[i], groups[j]
		if a.durable != b.durable {
			return b.durable
		}
		if a.definition != b.definition {
			return a.definition.Name < b.definition.Name
		}
		if a.kind != b.kind {
			return a.kind < b.kind
		}
		if x, y := a.entries[0].id, b.entries[0].id; x.Prefix != y.Prefix {
			return x.Prefix < y.Prefix
		}
		return a.entries[0].id.Key < b.entries[0].id.Key
	})
}

// finish reads the results, and finishes the requests that have an answer now. For the others it returns
// further transactions, or, after a lock timeout, the requests for another round.
func (t *transaction) finish() (again []*transaction, waiting []*request) {
	p := t.plan
	t.plan = nil
	again, waiting = t.apply(p)
	p.free() // not after a panic, since requests that have no answer point to its entries
	return again, waiting
}

// apply reads the results of a plan for finish.
func (t *transaction) apply(p *plan) (again []*transaction, waiting []*request) {
	d := t.work
	t.readState(p)
	var rows map[lease.RowID]*snapshot
	switch t.state {
	case divided:
		return t.divide(t.err), nil
	case lockTimeout:
		return nil, t.requests
	case committed:
		d.applyRows(p)
		d.expectRefusals(p)
		d.startCleanup(p)
		if p.inFlight {
			d.holdSlots(t.requests)
		}
		t.answerCommitted()
		return nil, nil
	case peeked:
		rows = peekedRows(p)
	case rolledBack:
		count(d.store.stats, RolledBack, 1)
		rows = rowsBefore(p, t.requests)
	}
	t.state = peeking
	if rows == nil || t.simulate(rows) {
		return []*transaction{t}, nil
	}
	return nil, nil
}

// readState reads the results of a round trip, and sets the state that they lead to. It sets err if that is
// divided.
func (t *transaction) readState(p *plan) {
	before := t.state
	t.state = divided
	if t.err != nil {
		return
	}
	p.read()
	waited := t.work.recordLocks(p)
	t.err = t.failure(p)
	switch {
	case t.err != nil && waited:
		t.state = lockTimeout
		return
	case t.err != nil:
		return
	case before == taking && t.check.Err == nil:
		t.state = committed
		return
	}
	if t.roundTrips++; t.roundTrips == maxRoundTrips || hasMixedRow(p) {
		t.err = ratelimit.ErrTimeout
		return
	}
	t.state = rolledBack
	if before == peeking {
		t.state = peeked
	}
}

// simulate decides the requests in memory. It reports whether one of them charges anything: then the
// transaction is taking. Otherwise the requests are answered.
func (t *transaction) simulate(rows map[lease.RowID]*snapshot) bool {
	d := t.work
	charges := simulate(t.requests, rows)
	for _, r := range t.requests {
		for i := range r.refusals {
			wait := r.decisions[r.refusals[i].hit].RetryAfter
			if wait < minPeekTime {
				wait = minPeekTime
			}
			lease.ExpectRefusal(d.store.rows, r.refusals[i].id, wait)
		}
	}
	if charges {
		t.state = taking
	} else {
		d.answer(t.requests, t.sent)
	}
	return charges
}

// hasMixedRow reports whether a plan has limits of different algorithms on one row. Each of them reads
// columns of its own, so that the simulation cannot decide them together.
func hasMixedRow(p *plan) bool {
	algorithms := make(map[lease.RowID]*algorithm.Definition, p.usedEntries)
	for _, e := range p.entries[:p.usedEntries] {
		d := algorithm.Of(e.view.Limit)
		if other := algorithms[e.id]; other != nil && other != d {
			return true
		}
		algorithms[e.id] = d
	}
	return false
}

// isOnPurpose reports whether a statement has failed by onPurposeSQL.
func isOnPurpose(s *pgdb.Statement) bool {
	return s.Code == pg.InvalidText && s.Err != nil && strings.Contains(s.Err.Error(), onPurpose)
}

// failure returns the error of the first statement that failed by itself, or that did not
// answer for all of its entries.
func (t *transaction) failure(p *plan) error {
	if t.check.Err != nil && !errors.Is(t.check.Err, pgdb.ErrRolledBack) && !isOnPurpose(&t.check) {
		return t.check.Err
	}
	for _, s := range p.statements {
		if s.Err != nil && !errors.Is(s.Err, pgdb.ErrRolledBack) {
			return s.Err
		}
	}
	for _, e := range p.entries[:p.usedEntries] {
		if e.err != nil && !errors.Is(e.err, pgdb.ErrRolledBack) {
			return e.err
		}
	}
	return nil
}

// divide handles the failure of the statements. If there are several requests, each gets a
// transaction of its own, so that one of them does not fail the others. A single request gets
// the error.
func (t *transaction) divide(err error) []*transaction {
	if len(t.requests) == 1 {
		t.work.clearRefunded(t.requests[0])
		t.work.finish(t.requests, err)
		return nil
	}
	return t.work.oneTransactionEach(t.requests, t.settings, t.oneByOne)
}

// answerCommitted answers the requests after the takes of the transaction have taken effect.
func (t *transaction) answerCommitted() {
	if t.roundTrips == 0 {
		decideGranted(t.requests)
		for _, r := range t.requests {
			if len(r.call.Decisions) < len(r.positions) {
				r.call.Err = errNoAnswer // the server granted less and did not fail
			}
			if len(r.call.Rows) > 0 && len(r.call.Decisions) == len(r.positions) {
				t.work.addLeasedUnits(r.call, t.sent)
			}
		}
		t.work.finish(t.requests, nil)
		return
	}
	for _, r := range t.requests {
		for i := range r.positions {
			if r.positions[i].refund != nil {
				t.work.clearRefunded(r)
			}
			e := r.positions[i].entry
			if e == nil {
				continue // the simulation has decided it
			}
			d := algorithm.Admitted(e.view.Limit, &e.view.Row, e.view.Now)
			d.Remaining = algorithm.Remaining(d.Limit, e.view.Free+(e.granted-1-r.positions[i].nth)*e.cost)
			r.decisions[i] = d
		}
	}
	t.work.answer(t.requests, t.sent)
}

// answer finishes requests with the decisions that they have. sent is the lease clock, read before
// their statements were sent.
func (d *work) answer(requests []*request, sent int64) {
	for _, r := range requests {
		for i := range r.refusals {
			refused := &r.refusals[i]
			lease.RememberRefusal(d.store.rows, refused.id, &refused.view, r.call.Hits[refused.hit].Cost,
				r.decisions[refused.hit].RetryAfter, d.sequence)
		}
		r.call.Decisions = append(r.call.Decisions[:0], r.decisions...)
		if len(r.call.Rows) > 0 {
			d.addLeasedUnits(r.call, sent)
		}
		d.refundRefused(r)
	}
	d.finish(requests, nil)
}
