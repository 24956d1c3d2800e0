package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// applySingles decides requests of at most one hit by their rows. It finishes failed requests. It returns the
// requests with decisions, and the requests that need another round.
func (w *work) applySingles(requests []*request) ([]*request, []*request) {
	decideGranted(requests)
	decided := make([]*request, 0, len(requests))
	var toRepeat []*request
	for _, r := range requests {
		c := r.Call
		if granted := len(c.Decisions); granted < len(r.positions) || granted == 0 {
			if w.expireEnded(r) {
				toRepeat = append(toRepeat, r)
				continue
			}
			if err := w.decideUnusual(r); errors.Is(err, errLocked) || errors.Is(err, errBadValue) {
				toRepeat = append(toRepeat, r)
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
	return decided, toRepeat
}

// expireEnded reports whether a row that has room granted a request nothing, because the name of its slots
// or units has ended. It then expires the name, so that the request is decided for another one.
func (w *work) expireEnded(r *request) bool {
	if len(r.positions) != 1 {
		return false
	}
	e := r.positions[0].entry
	switch {
	case !e.answered || e.first == 0 || e.granted > 0 || e.view.Free < e.cost:
		return false
	case e.sums != nil:
		w.engine.ledger.Name.Replace(e.first)
	default:
		w.engine.slots.Name.Replace(slots.NameOf(e.first))
	}
	return true
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
				quota = limit.Events // as limit.Capacity returns, whose call an interpreter would pay for
				if limit.Burst > 0 {
					quota = limit.Burst
				}
			}
			left := e.view.Free + (e.granted-1-pos.nth)*e.cost
			if e.sums != nil {
				left = e.view.Free + e.sums[e.granted] - e.sums[pos.nth+1]
			}
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
				lease.RememberRefusal(w.engine.rows, e.id, v, h.Cost, c.Decisions[i].RetryAfter,
					w.sequence)
			}
		}
	}
	return nil
}

// applyRows updates the remembered rows with the rows of a plan.
func (w *work) applyRows(p *plan) {
	w.updateLeases(p)
	if !w.keepsRows {
		return
	}
	held := make([]lease.RowView, 0, len(p.entries))
	for _, e := range p.entries {
		if e.answered && e.err == nil {
			held = append(held, lease.RowView{ID: e.id, View: &e.view})
		}
	}
	lease.KeepRows(w.engine.rows, held)
}

// recordLocks records lock timeouts of rows that had their own statement, and clears the lock timeouts of
// rows that statements have locked. It reports whether any statement of the plan reached its lock timeout.
func (w *work) recordLocks(p *plan) bool {
	waited := false
	for _, g := range p.groups {
		waited = waited || g.statement.Code == pg.LockNotAvailable
	}
	w.timedOut = w.timedOut || waited
	if !waited && atomic.LoadInt64(&w.engine.rows.LockCount) == 0 {
		return false
	}
	for _, g := range p.groups {
		s := &g.statement
		for _, e := range g.entries {
			if s.Code == pg.LockNotAvailable && len(g.entries) == 1 {
				lease.RecordLockTimeout(w.engine.rows, e.id)
			} else if g.key.Kind != statement.Peek && (s.Err == nil || s.Rows > 0) {
				lease.ClearLockTimeouts(w.engine.rows, e.id)
			}
		}
	}
	return waited
}
