package engine

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
)

// Another transaction may hold the lock of a row for a long time: an operator's open session, or a
// program that hangs. One locked row must not delay the decisions on all others. A statement waits
// for a lock for lockWait and then fails as a whole. Its requests are sent again at once, each in a
// statement of its own that hardly waits, which finds the locked rows. Requests on these go into a queue
// beside the batch's (batch.Beside), and so do further requests on a row for which a statement of its own
// has waited in vain lately. One worker decides them, each by itself; the statements of a batch wait
// together for no longer than one. So locked rows keep at most one worker, however many they are.
//
// A row that is merely busy, because batches of other proxies lock the row one after the other, is
// free again after some of these batches (TestBusyRowsAreWaitedFor). A row for which statements have
// waited in vain for lockedWaits counts as locked, and its requests fail at once. One request in
// lockMemory tries again.

// lockWait is the longest wait of a statement of a batch for a lock.
func (d *dispatch) lockWait() time.Duration { return time.Duration(d.settings[1]) * time.Millisecond }

const (
	// A wait for a lock takes at most 1/lockShare of the timeout, so that a batch has time to go on after it.
	lockShare = 5

	// lockedWaits is how many lockWaits lie between the first and the last statement that have waited in
	// vain for a row that counts as locked.
	lockedWaits = 2

	// lockMemory is for how long a row counts as locked until another request tries.
	lockMemory = 100 * time.Millisecond

	// waitMemory is for how long a row is known on which a statement has waited in vain: nothing that
	// no caller waits for is sent to it.
	waitMemory = time.Second

	// longMemory is when all is forgotten if no statement has waited in vain meanwhile.
	longMemory = 10 * time.Second

	// maxLocks bounds the rows.
	maxLocks = 10000
)

// locks are the rows on which statements have waited for a lock in vain lately.
type locks struct {
	any  int32 // 1 if there may be rows; atomic, so that the usual batch takes no lock
	mu   sync.Mutex
	rows map[lease.RowID]*lockedRow // guarded by mu
	last time.Time                  // when a statement has waited in vain; guarded by mu
}

// lockedRow is when statements for a row have waited in vain. The mutex of locks guards it.
type lockedRow struct{ first, last time.Time }

// find reports whether one of a request's rows counts as locked. due is whether the request is to try
// again: the first caller does, and for all others the row counts as locked meanwhile.
func (l *locks) find(r *request, wait time.Duration) (locked, due bool) {
	locked = false
	due = false
	if atomic.LoadInt32(&l.any) == 0 {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) >= longMemory {
		l.rows = nil
		atomic.StoreInt32(&l.any, 0)
	}
	for i := range r.call.Hits {
		h := l.rows[rowOf(&r.call.Hits[i])]
		if h == nil || h.last.Sub(h.first) < lockedWaits*wait {
			continue
		}
		if now.Sub(h.last) >= lockMemory {
			h.last = now
			due = true
		}
		locked = true
	}
	return locked, due
}

// has reports whether a statement has waited for a row in vain lately.
func (l *locks) has(id lease.RowID) bool {
	if atomic.LoadInt32(&l.any) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.rows[id]
	return h != nil && time.Since(h.last) < waitMemory
}

// learn records for which rows statements of their own have waited in vain, and forgets the rows that
// statements have found free. It reports whether a statement of the plan has waited in vain.
func (l *locks) learn(p *plan) bool {
	waited := false
	for _, stage := range p.stages {
		for _, g := range stage {
			waited = waited || g.statement.Code == sqlstate.LockNotAvailable
		}
	}
	if !waited && atomic.LoadInt32(&l.any) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stage := range p.stages {
		for _, g := range stage {
			for _, e := range g.entries {
				if g.statement.Code == sqlstate.LockNotAvailable {
					if len(g.entries) == 1 {
						l.add(e.id)
					}
				} else if g.kind != look && (e.answered || g.statement.Err == nil) {
					delete(l.rows, e.id)
				}
			}
		}
	}
	return waited
}

// add records a row for which a statement of its own has waited in vain. The caller holds the mutex.
func (l *locks) add(id lease.RowID) {
	l.last = time.Now()
	if h := l.rows[id]; h != nil {
		h.last = l.last
		return
	}
	if l.rows == nil || len(l.rows) >= maxLocks {
		l.rows = map[lease.RowID]*lockedRow{}
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	l.rows[id] = &lockedRow{first: l.last, last: l.last}
	atomic.StoreInt32(&l.any, 1)
}

// refuseLocked fails the requests on rows that count as locked, and returns those to decide now. Others
// wait: they are to try again, or statements have waited for their rows in vain lately.
func (d *dispatch) refuseLocked(requests []*request) []*request {
	var now, waiting, refused []*request
	for _, r := range requests {
		switch locked, due := d.engine.locks.find(r, d.lockWait()); {
		case due || !locked && d.hasWaited(r):
			waiting = append(waiting, r)
		case locked:
			refused = append(refused, r)
		default:
			now = append(now, r)
		}
	}
	d.finish(refused, own.ErrLocked)
	if len(waiting) > 0 {
		d.wait(waiting)
	}
	return now
}

// hasWaited reports whether a statement has waited in vain for one of a request's rows lately.
func (d *dispatch) hasWaited(r *request) bool {
	for i := range r.call.Hits {
		if d.engine.locks.has(rowOf(&r.call.Hits[i])) {
			return true
		}
	}
	return false
}

// wait puts requests into the queue beside that of the batch, which finishes them.
func (d *dispatch) wait(requests []*request) {
	e, q := d.engine, d.queue
	beside := batch.Beside(q, func(calls []*batch.Call, deadline time.Time) { e.decideLocked(q, calls, deadline) },
		func(calls []*batch.Call) { e.failCalls(q, calls, own.ErrLocked) })
	for _, r := range requests {
		r.finished = true
		batch.Send(beside, r.call, r.call.Arrived)
	}
}

// decideLocked decides calls that wait for locks, each by itself. Those that have waited in vain wait for
// the next batch, unless their rows count as locked now, or they have waited for a timeout.
func (e *engine) decideLocked(q *batch.Queue, calls []*batch.Call, deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	d := newDispatch(ctx, e, q, calls)
	d.stats = tally{}
	d.end(batch.PanicError(func() {
		waiting, err := d.decideRound(d.requests, shortWait(d.settings, int64(len(calls))), true)
		if err != nil {
			d.fail(d.requests, err)
			return
		}
		var again, refused []*request
		for _, r := range waiting {
			locked, _ := e.locks.find(r, d.lockWait())
			if locked || time.Since(r.call.Arrived) >= q.Timeout {
				refused = append(refused, r)
			} else {
				again = append(again, r)
			}
		}
		d.finish(refused, own.ErrLocked)
		if len(again) > 0 {
			batch.Sleep(ctx, time.Millisecond) // the server may fail them at once
			d.wait(again)
		}
	}))
}
