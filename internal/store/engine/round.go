package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// decideRound decides requests in one or more round trips, and finishes those that it decides: plan (calls →
// entries → statements), send, apply (rows → decisions → calls end). It returns the requests that need
// another round, because their statement reached its lock timeout or failed because of another request.
//
// The first round of a batch also sends jobs. If oneByOne is set, as in a retry of requests that failed
// together, each entry gets its own statement, and the round has no jobs.
func (w *work) decideRound(requests []*request, lockWait time.Duration, oneByOne bool) ([]*request, error) {
	singles, several := requests, []*request(nil)
	if w.hasSeveral {
		singles, several = singlesAndSeveral(requests)
	}
	if !oneByOne && (atomic.LoadInt32(&w.backlog.Waiting) > 0 ||
		atomic.LoadInt32(&w.engine.rows.Refunding) > 0) {
		w.collectJobs(requests)
	}
	p := newPlan(w.buffers, len(requests), oneByOne)
	if len(w.jobs) > 0 {
		addJobs(p, w.jobs, beforeRequests)
	}
	w.repeatReleases(p, requests)
	addRequestsInline(p, singles)
	if p.holds {
		_ = w.allocateSlots(p) // the hits get its error
	}
	if p.remembered && !oneByOne {
		w.addLeaseCharges(p)
	}
	if len(w.jobs) > 0 {
		addJobs(p, w.jobs, afterRequests)
	}
	statements := p.write(w.engine.texts, w.now, lockWait)
	var transactions []*transaction
	if len(several) > 0 {
		transactions = w.newTransactions(several, lockWait, oneByOne, oneByOne)
		statements = writeAll(transactions, statements)
	}
	failed, err := w.engine.run(w.ctx, w.queue.Timeout, statements)
	if err != nil {
		if errors.Is(err, pgdb.ErrNotSent) {
			for _, j := range w.jobs {
				j.Err = err // the job certainly had no effect
				j.Unsent = true
			}
		}
		return nil, err
	}
	p.read()
	if failed || atomic.LoadInt64(&w.engine.rows.LockCount) > 0 {
		w.recordLocks(p)
	}
	done, toRepeat := w.applySingles(singles)
	if p.holds {
		w.acquireSlots(done)
	}
	if p.remembered || w.keepsRows {
		w.applyRows(p)
	}
	if len(w.jobs) > 0 {
		w.applyJobs()
	}
	w.finish(done, nil)
	if w.cleans && !failed {
		w.engine.startCleanup(w.now)
	}
	if len(several) == 0 {
		return toRepeat, nil
	}
	for _, r := range several {
		// Not in the transaction, because a row without free units would fail it.
		for _, row := range r.Rows {
			w.engine.chargeLease(row)
		}
	}
	waiting, err := w.finishTransactions(transactions)
	return append(toRepeat, waiting...), err
}

// finishTransactions finishes transactions that were sent. It may take further round trips. It returns the
// requests that need another round.
func (w *work) finishTransactions(transactions []*transaction) ([]*request, error) {
	var toRepeat []*request
	for len(transactions) > 0 {
		var next []*transaction
		for _, t := range transactions {
			more, waiting := t.apply()
			next = append(next, more...)
			toRepeat = append(toRepeat, waiting...)
		}
		if len(next) > 0 {
			statements := writeAll(next, nil)
			if _, err := w.engine.run(w.ctx, w.queue.Timeout, statements); err != nil {
				return toRepeat, err
			}
		}
		transactions = next
	}
	return toRepeat, nil
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
