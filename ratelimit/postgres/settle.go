package postgres

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A settlement changes a row by what a request cost more or less than it was charged, see
// algorithm.Definition.Adjust. Nobody waits for a settlement. It goes with the next batch, before all else in
// the plan, or with one of its own if no batch comes. It is sent once. If its answer is lost, it is not
// repeated, because it may have had its effect. A statement that has waited for a lock in vain had none, so
// that its settlements wait for another batch.

func init() {
	hooks.Settle = settle
}

// settlement waits for a batch.
type settlement struct {
	row   lease.RowID
	limit *ratelimit.Limit
	at    int64     // when the first of its charges was made
	back  int64     // what is given back; below 0 is charged
	since time.Time // when it first waited for a lock in vain; zero if it has not
}

// settledWindow is what settlements are added up by: two charges of a row in one window.
type settledWindow struct {
	row    lease.RowID
	window int64
}

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
	waking  bool // send is about to run
}

// settle is hooks.Settle.
func settle(store ratelimit.Store, h *hooks.Settlement) {
	s, ok := store.(*Store)
	if !ok || h.Source != ratelimit.FromPostgres && h.Source != ratelimit.FromLease {
		return
	}
	if p := partsOf(s); p != nil {
		subject := h.Subject
		if subject == "" {
			subject = h.Key
		}
		s = p.stores[partOfSubject(subject, len(p.stores))]
	}
	id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: strings.Clone(h.Key)} // the key may be a part of a long request
	addSettlement(s, settledWindow{id, algorithm.WindowOf(h.Limit, h.DecidedAt, h.Reset)}, &settlement{row: id, limit: h.Limit, at: h.DecidedAt, back: h.Back})
}

// addSettlement adds to the settlements that wait.
func addSettlement(s *Store, window settledWindow, add *settlement) {
	q := &s.engine.settles
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending == nil {
		q.pending = map[settledWindow]*settlement{}
	}
	before := q.pending[window]
	switch {
	case before != nil:
		before.back = addRefund(before.back, add.back)
	case len(q.pending) >= maxSettlements:
		addSettled(s.engine.counts, 0, 1)
	default:
		q.pending[window] = add
	}
	wake(q, settleWait)
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

// settling is a settlement that goes with a batch.
type settling struct {
	window     settledWindow
	settlement *settlement
	entry      *entry
}

// planSettlements plans the settlements that go with a batch, each row once. Those of locked rows wait.
func (d *dispatch) planSettlements(p *plan) []settling {
	q := &d.engine.settles
	if atomic.LoadInt32(&q.any) == 0 || p.oneByOne {
		return nil
	}
	idle := d.isIdle()
	retried := 0
	var all []settling
	q.mu.Lock()
	for window, s := range q.pending {
		if len(all) == mostSettled {
			break
		}
		if _, locked := d.engine.locks.has(s.row); locked && s.since.IsZero() {
			s.since = time.Now()
		}
		waited := !s.since.IsZero()
		if p.latest[s.row] != nil || waited && (!idle || retried == mostRetried) {
			continue
		}
		if waited {
			retried++
		}
		delete(q.pending, window)
		p.oneByOne = waited
		e := add(p, refund, s.limit, s.row, s.back).entry
		p.oneByOne = false
		e.claim = s.at
		all = append(all, settling{window, s, e})
	}
	if len(q.pending) == 0 {
		atomic.StoreInt32(&q.any, 0)
	}
	q.mu.Unlock()
	return all
}

// finishSettlements reads what has become of settlements. err is why their statements have no results, or nil.
func (d *dispatch) finishSettlements(all []settling, err error) {
	q := &d.engine.settles
	made := int64(0)
	lost := int64(0)
	var reason error
	for _, one := range all {
		s := one.settlement
		failure := err
		if failure == nil {
			failure = one.entry.err
		}
		switch {
		case failure == nil:
			made++
			if s.back > 0 {
				d.engine.blocked.clear(s.row) // the row has more again
			}
		case errors.Is(failure, errLocked) && (s.since.IsZero() || time.Since(s.since) < maxSettleWait):
			if s.since.IsZero() {
				s.since = time.Now()
			}
			q.mu.Lock()
			if before := q.pending[one.window]; before != nil {
				before.back = addRefund(before.back, s.back)
				before.since = s.since
			} else {
				q.pending[one.window] = s
			}
			wake(q, retrySettle)
			q.mu.Unlock()
		default:
			lost++
			reason = failure
		}
	}
	if made+lost > 0 {
		addSettled(d.engine.counts, made, lost)
	}
	if reason != nil { // once for a batch, which may have 500
		d.engine.cleaner.report(fmt.Errorf("ratelimit/postgres: %d settlements are lost: %w", lost, reason))
	}
}
