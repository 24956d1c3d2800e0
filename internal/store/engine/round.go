package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// decideRound decides requests in one or more round trips, and finishes those that it decides: plan (calls →
// entries → statements), send, apply (rows → decisions → calls end). It returns the requests that need
// another round, because their statement reached its lock timeout or failed because of another request.
//
// The first round of a batch also sends jobs. If oneByOne is set, as in a retry of requests that failed
// together, each hit gets its own statement, and the round has no jobs.
func (w *work) decideRound(requests []*request, lockWait time.Duration, oneByOne bool) ([]*request, error) {
	singles, several := requests, []*request(nil)
	if w.hasSeveral {
		singles, several = singlesAndSeveral(requests)
	}
	if !oneByOne && (atomic.LoadInt32(&w.backlog.Waiting) > 0 ||
		atomic.LoadInt32(&w.store.rows.Refunding) > 0) {
		w.collectJobs(requests)
	}
	p := newPlan(w.buffers, len(requests), oneByOne)
	if len(w.jobs) > 0 {
		addJobs(p, w.jobs, false)
	}
	w.repeatReleases(p, requests)
	addRequests(p, singles)
	if p.inFlight {
		_ = w.allocateSlots(p) // the hits get its error
	}
	if p.remembered && !oneByOne {
		w.chargeUnits(p)
	}
	if len(w.jobs) > 0 {
		addJobs(p, w.jobs, true)
	}
	statements := p.write(w.store.texts, w.now, lockWait)
	var transactions []*transaction
	if len(several) > 0 {
		transactions = w.newTransactions(several, lockWait, oneByOne, oneByOne)
		statements = writeAll(transactions, statements)
	}
	failed, err := w.store.server.run(w.ctx, w.queue.Timeout, statements)
	if err != nil {
		if errors.Is(err, pgdb.ErrNotSent) {
			for _, j := range w.jobs {
				j.Err = err // the job certainly had no effect
			}
		}
		return nil, err
	}
	p.read()
	if failed || atomic.LoadInt64(&w.store.rows.LockCount) > 0 {
		w.recordLocks(p)
	}
	done, again := w.applySingles(singles)
	if p.inFlight {
		w.holdSlots(done)
	}
	if p.remembered || w.keepsRows {
		w.applyRows(p)
	}
	if len(w.jobs) > 0 {
		w.applyJobs()
	}
	w.finish(done, nil)
	if w.cleans && !failed {
		w.store.startCleanup(w.now)
	}
	if len(several) == 0 {
		return again, nil
	}
	for _, r := range several {
		// Not in the transaction, because a row without free units would fail it.
		for _, row := range r.Rows {
			w.store.chargeLease(row)
		}
	}
	waiting, err := w.finishTransactions(transactions)
	return append(again, waiting...), err
}

// finishTransactions finishes transactions that were sent. It may take further round trips. It returns the
// requests that need another round.
func (w *work) finishTransactions(transactions []*transaction) ([]*request, error) {
	var again []*request
	for len(transactions) > 0 {
		var next []*transaction
		for _, t := range transactions {
			further, waiting := t.apply()
			next = append(next, further...)
			again = append(again, waiting...)
		}
		if len(next) > 0 {
			statements := writeAll(next, nil)
			if _, err := w.store.server.run(w.ctx, w.queue.Timeout, statements); err != nil {
				return again, err
			}
		}
		transactions = next
	}
	return again, nil
}

// singlesAndSeveral splits requests. Singles have at most one hit or are resets, so the entry of the hit
// decides the request. Requests of several hits pass as a whole or not at all.
func singlesAndSeveral(requests []*request) ([]*request, []*request) {
	var singles, several []*request
	for _, r := range requests {
		if len(r.Hits) < 2 || r.Reset {
			singles = append(singles, r)
		} else {
			several = append(several, r)
		}
	}
	return singles, several
}

// writeAll appends the statements of transactions.
func writeAll(transactions []*transaction, statements []*pgdb.Statement) []*pgdb.Statement {
	for _, t := range transactions {
		statements = append(statements, t.write()...)
	}
	return statements
}

// applyRows updates the remembered rows with the rows of a plan.
func (w *work) applyRows(p *plan) {
	w.updateLeases(p)
	if !w.keepsRows {
		return
	}
	held := make([]lease.Held, 0, len(p.entries))
	for _, e := range p.entries {
		if e.answered && e.err == nil {
			held = append(held, lease.Held{ID: e.id, View: &e.view})
		}
	}
	lease.KeepRows(w.store.rows, held)
}

// applySingles decides requests of at most one hit by their rows. It finishes failed requests. It returns the
// requests with decisions, and the requests that need another round.
func (w *work) applySingles(requests []*request) ([]*request, []*request) {
	decideGranted(requests)
	decided := make([]*request, 0, len(requests))
	var again []*request
	for _, r := range requests {
		c := r.Call
		if granted := len(c.Decisions); granted < len(r.positions) || granted == 0 {
			if err := w.decideUnusual(r); errors.Is(err, errLocked) || errors.Is(err, errBadValue) {
				again = append(again, r)
				continue
			} else if err != nil {
				w.finish([]*request{r}, err)
				continue
			}
		}
		if len(c.Rows) > 0 {
			w.addLeasedUnits(c)
		}
		decided = append(decided, r)
	}
	return decided, again
}

// decideGranted sets the decisions on the granted charges of requests. For each request, it stops at the
// first hit that was not granted. It handles all requests in one loop, because calls are expensive in Yaegi.
func decideGranted(requests []*request) {
	var limit *ratelimit.Limit // the previous entry's limit
	quota := int64(0)
	micros := int64(0)
	reset := time.UnixMicro(0)
	for _, r := range requests {
		decisions := r.Decisions[:0]
		positions := r.positions
		for i := range positions {
			pos := &positions[i]
			e := pos.entry
			if e == nil { // the simulation has decided the hit
				decisions = append(decisions, r.Decisions[i])
				continue
			}
			if pos.nth >= e.granted {
				break // only charges that succeeded grant anything
			}
			if e.view.Limit != limit {
				limit = e.view.Limit
				quota = limit.Capacity()
			}
			left := e.view.Free + (e.granted-1-pos.nth)*e.cost
			if left < 0 {
				left = 0
			}
			if left > quota {
				left = quota
			}
			if e.view.Reset != micros {
				micros = e.view.Reset
				reset = time.UnixMicro(micros)
			}
			chargedAt := e.view.Now
			if e.view.Row.Start > chargedAt || e.view.Row.Refill > chargedAt || len(e.view.Row.Hits) > 0 {
				chargedAt = algorithm.ChargedAt(e.view.Limit, &e.view.Row, chargedAt)
			}
			decisions = append(decisions, ratelimit.Decision{Allowed: true, Quota: quota,
				Remaining: left, Reset: reset, DecidedAt: chargedAt})
		}
		r.Decisions = decisions
	}
}

// decideUnusual decides a request that decideGranted did not decide: a refusal, a refund, a peek, a reset or
// a failed statement. It remembers a refusal. It returns the error of the statement.
func (w *work) decideUnusual(r *request) error {
	c := r.Call
	c.Decisions = c.Decisions[:0]
	w.clearRefunded(r)
	if err := failure(r); err != nil {
		if pos := &r.positions[0]; pos.refund != nil && pos.refund.err == nil {
			r.refunded = true
		}
		return err
	}
	if !c.Reset {
		for i := range c.Hits {
			h := &c.Hits[i]
			e := r.positions[i].entry
			v := &e.view
			if h.Cost < 0 || h.Peek && algorithm.Fits(v.Limit, &v.Row, v.Now, h.Cost) {
				c.Decisions = append(c.Decisions, algorithm.Admitted(v.Limit, &v.Row, v.Now))
			} else {
				c.Decisions = append(c.Decisions, algorithm.Refused(v.Limit, &v.Row, v.Now, h.Cost))
			}
			if e.kind == statement.Charge && !e.refusalKept {
				e.refusalKept = true
				lease.RememberRefusal(w.store.rows, e.id, v, h.Cost, c.Decisions[i].RetryAfter,
					w.sequence)
			}
		}
	}
	return nil
}
