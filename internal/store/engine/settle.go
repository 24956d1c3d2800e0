package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A settlement changes a row by what a request cost more or less than it was charged, see
// algorithm.Definition.Adjust, or charges what was admitted without the database (local_charge.go).
// Nobody waits for a settlement. It goes with the next batch, before all else in the plan, or with one of
// its own if no batch comes. It is sent once. If its answer is lost, it is not repeated, because it may
// have had its effect. A statement that has waited for a lock in vain had none, so that its settlements
// wait for another batch.

// settlement waits for a batch.
type settlement struct {
	row   lease.RowID
	limit *ratelimit.Limit
	at    int64 // when the first of its charges was made
	back  int64 // what is given back; below 0 is charged

	// local is whether it charges what was admitted without the database: as far as the quota goes, and also
	// a row that is not there.
	local bool
}

// settledWindow is what settlements are added up by: two charges of a row in one window.
type settledWindow struct {
	row    lease.RowID
	window int64
}

// localWindow is the window of settlements that are local.
const localWindow = math.MinInt64

const (
	// maxSettlements bounds those that wait, while the database does not answer. Further ones are lost.
	maxSettlements = 20000

	// maxSettleWait is for how long a settlement on a locked row tries.
	maxSettleWait = time.Minute

	// settleWait is how long settlements wait for the batch of a request.
	settleWait = 5 * time.Millisecond
)

// Settle changes a counter soon, and does not wait for that.
func (s *Store) Settle(h *batch.Settlement) {
	if h.Source != ratelimit.FromPostgres && h.Source != ratelimit.FromLease {
		return
	}
	of := s
	if p := partsOf(s); p != nil {
		subject := h.Subject
		if subject == "" {
			subject = h.Key
		}
		of = p.stores[partOfSubject(subject, len(p.stores))]
	}
	id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: strings.Clone(h.Key)} // the key may be a part of a long request
	addSettlement(of, settledWindow{id, algorithm.WindowOf(h.Limit, h.DecidedAt, h.Reset)}, &settlement{row: id, limit: h.Limit, at: h.DecidedAt, back: h.Back})
}

// addSettlement adds to the settlements that wait.
func addSettlement(s *Store, window settledWindow, add *settlement) {
	p := s.engine.post
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settling[window] == nil && len(p.settling) >= maxSettlements {
		addSettled(s.engine.counts, 0, 1)
		if add.local {
			s.engine.local.settled(-add.back, 0, true)
		}
		return
	}
	p.settle(&ownCall{kind: settleCost, window: window, settlement: add}, settleWait)
}

// settle adds a settlement to the one of its window, or to the calls that wait. The caller holds the mutex.
func (p *post) settle(c *ownCall, wait time.Duration) {
	before := p.settling[c.window]
	if before == nil {
		p.settling[c.window] = c
		p.add(c, wait)
		return
	}
	before.settlement.back = addRefund(before.settlement.back, c.settlement.back)
	if before.since.IsZero() {
		before.since = c.since
	}
}

// planSettle plans a settlement. only is whether it has a statement of its own.
func planSettle(p *plan, s *settlement, only bool) *entry {
	e := nextEntry(p)
	*e = entry{kind: refund, id: s.row, n: 1, cost: s.back, claim: s.at, view: algorithm.View{Limit: s.limit}}
	if s.local {
		*e = entry{kind: take, id: s.row, n: -s.back, cost: 1, view: algorithm.View{Limit: s.limit}}
	}
	p.latest[s.row] = e
	g := groupOf(p, e, only)
	g.entries = append(g.entries, e)
	return e
}

// settlementEnds are what has become of the settlements of a batch.
type settlementEnds struct {
	made, lost int64
	reason     error
}

// endSettlement ends a settlement. One that had no effect because of a lock waits for another batch.
func (d *dispatch) endSettlement(c *ownCall, failure error, ends *settlementEnds) {
	s := c.settlement
	switch {
	case failure == nil:
		ends.made++
		if s.local {
			charged := c.entry.granted // also for requests
			if charged > -s.back {
				charged = -s.back
			}
			d.engine.local.settled(-s.back, charged, false)
		} else if s.back > 0 {
			d.engine.blocked.Clear(s.row) // the row has more again
		}
	case errors.Is(failure, errLocked) && (c.since.IsZero() || time.Since(c.since) < maxSettleWait):
		again := c.again()
		p := d.engine.post
		p.mu.Lock()
		p.settle(again, longestPost)
		p.mu.Unlock()
	default:
		ends.lost++
		ends.reason = failure
		if s.local {
			d.engine.local.settled(-s.back, 0, true)
		}
	}
}

// countSettlements counts what has become of settlements, and reports that some are lost: once for a batch, which may
// have 500.
func (d *dispatch) countSettlements(ends *settlementEnds) {
	if ends.made+ends.lost > 0 {
		addSettled(d.engine.counts, ends.made, ends.lost)
	}
	if ends.reason != nil {
		d.engine.cleaner.report(fmt.Errorf("ratelimit/postgres: %d settlements are lost: %w", ends.lost, ends.reason))
	}
}
