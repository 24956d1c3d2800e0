package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A settlement changes a row by what a request cost more or less than it was charged, see
// algorithm.Definition.Adjust, or charges what was admitted without the database (local_charge.go). Nobody waits for a settlement. It goes with the next batch, before all else in
// the plan, or with one of its own if no batch comes. It is sent once. If its answer is lost, it is not
// repeated, because it may have had its effect. A statement that has waited for a lock in vain had none, so
// that its settlements wait for another batch.

// settlement waits for a batch.
type settlement struct {
	row   lease.RowID
	limit *ratelimit.Limit
	at    int64     // when the first of its charges was made
	back  int64     // what is given back; below 0 is charged
	since time.Time // when it first waited for a lock in vain; zero if it has not

	// local is whether it charges what was admitted without the database: as far as the quota goes, and also a row that is
	// not there.
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

	// mostSettled is how many go with a batch: more would delay its requests.
	mostSettled = 500

	// mostRetried is how many that have waited for a lock in vain go with a batch, each in a statement of its own, and
	// without requests. maxSettleWait is for how long they try.
	mostRetried   = 3
	maxSettleWait = time.Minute

	// settleWait is how long settlements wait for the batch of a request. retrySettle is how long they
	// wait if none of them could be sent.
	settleWait  = 5 * time.Millisecond
	retrySettle = 200 * time.Millisecond
)

// settlements are those that wait for a batch.
type settlements struct {
	any  int32  // 1 if there are some; atomic, so that the usual batch takes no lock
	send func() // sendSettlements of the store

	mu      sync.Mutex // guards all that follows
	pending map[settledWindow]*settlement
	order   []settledWindow // those of pending, in the order of arrival
	waking  bool            // send is about to run
}

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
	q := &s.engine.settles
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending[window] == nil && len(q.pending) >= maxSettlements {
		addSettled(s.engine.counts, 0, 1)
		if add.local {
			s.engine.local.settled(-add.back, 0, true)
		}
		return
	}
	addPending(q, window, add)
	wake(q, settleWait)
}

// addPending adds a settlement to the one of its window, or to those that wait. The caller holds the mutex.
func addPending(q *settlements, window settledWindow, s *settlement) {
	if before := q.pending[window]; before != nil {
		before.back = addRefund(before.back, s.back)
		if before.since.IsZero() {
			before.since = s.since
		}
		return
	}
	if q.pending == nil {
		q.pending = map[settledWindow]*settlement{}
	}
	q.pending[window] = s
	q.order = append(q.order, window)
}

// wake runs send soon, if no other batch takes what waits. The caller holds the mutex.
func wake(q *settlements, wait time.Duration) {
	atomic.StoreInt32(&q.any, 1)
	if !q.waking {
		q.waking = true
		time.AfterFunc(wait, q.send)
	}
}

// sendSettlements decides a batch without requests, if settlements still wait for one and the database answers.
func sendSettlements(s *Store) {
	err := batch.PanicError(func() {
		wait := settleWait
		if left := s.engine.settles.size(); left > 0 && s.unavailable() == nil {
			batch.Enter(s.leasing, batch.NewCall())
			if s.engine.settles.size() >= left {
				wait = retrySettle
			}
		} else if left > 0 {
			wait = retrySettle
		}
		q := &s.engine.settles
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waking = false
		if len(q.pending) > 0 && !errors.Is(s.unavailable(), ratelimit.ErrClosed) {
			wake(q, wait)
		}
	})
	s.engine.cleaner.report(err)
}

// size is how many settlements wait.
func (q *settlements) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)
}

// endSettlements sends what is left before the store is closed.
func endSettlements(s *Store) {
	for until := time.Now().Add(leaseTimeout); s.engine.settles.size() > 0 && time.Now().Before(until) && s.engine.server.unavailable() == nil; {
		batch.Enter(s.leasing, batch.NewCall())
	}
}

// calls adds the settlements that go with a batch, each row once. Those of locked rows wait.
func (q *settlements) calls(d *dispatch, requests []*request, own []*ownCall) []*ownCall {
	if atomic.LoadInt32(&q.any) == 0 {
		return own
	}
	idle := isIdle(requests)
	retried := 0
	n := 0
	rows := map[lease.RowID]bool{}
	q.mu.Lock()
	defer q.mu.Unlock()
	var left []settledWindow
	for i, window := range q.order {
		if n == mostSettled {
			left = append(left, q.order[i:]...)
			break
		}
		s := q.pending[window]
		if d.engine.locks.has(s.row) && s.since.IsZero() {
			s.since = time.Now()
		}
		waited := !s.since.IsZero()
		if rows[s.row] || waited && (!idle || retried == mostRetried) {
			left = append(left, window)
			continue
		}
		if waited {
			retried++
		}
		n++
		rows[s.row] = true
		delete(q.pending, window)
		own = append(own, &ownCall{kind: settleCost, window: window, settlement: s})
	}
	q.order = left
	if len(left) == 0 {
		atomic.StoreInt32(&q.any, 0)
	}
	return own
}

// planSettle plans a settlement. One that has waited for a lock in vain has a statement of its own.
func planSettle(p *plan, s *settlement) *entry {
	e := nextEntry(p)
	*e = entry{kind: refund, id: s.row, n: 1, cost: s.back, claim: s.at, view: algorithm.View{Limit: s.limit}}
	if s.local {
		*e = entry{kind: take, id: s.row, n: -s.back, cost: 1, view: algorithm.View{Limit: s.limit}}
	}
	p.latest[s.row] = e
	g := groupOf(p, e, !s.since.IsZero())
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
	q := &d.engine.settles
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
	case errors.Is(failure, errLocked) && (s.since.IsZero() || time.Since(s.since) < maxSettleWait):
		if s.since.IsZero() {
			s.since = time.Now()
		}
		q.mu.Lock()
		addPending(q, c.window, s)
		wake(q, retrySettle)
		q.mu.Unlock()
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
