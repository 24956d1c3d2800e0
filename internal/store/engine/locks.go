package engine

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Another transaction may hold the lock of a row for a long time: an operator's open session, or a
// program that hangs. One locked row must not delay the decisions on all others. A statement waits
// for a lock for lockWait and then fails as a whole. The requests of its entries wait until the rest
// of the batch is finished. Then they are sent again, in rounds, each in a statement of its own. The statements of a round wait together for no
// longer than one. So after a round it is known which rows are free.
//
// A row that is merely busy, because batches of other proxies lock the row one after the other, is
// free again after some rounds (TestBusyRowsAreWaitedFor). A row for which statements have waited in
// vain for lockedWaits counts as locked, and its requests fail at once. One request in lockMemory
// tries again.

// lockWait is a fifth of the timeout, so that a batch has time to go on after it.
func lockWait(timeout time.Duration) time.Duration {
	wait := (timeout / 5).Truncate(time.Millisecond)
	if wait < time.Millisecond {
		return time.Millisecond // 0 would be no bound
	}
	return wait
}

// errLocked is the error of a hit on a locked row.
var errLocked = fmt.Errorf("%w: a transaction that has not ended has locked the row of a key: it is open, or its commit waits for a synchronous standby", ratelimit.ErrTimeout)

const (
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

	// maxWaits bounds the rounds of a batch.
	maxWaits = 5
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

// learn records for which rows the statements of a plan have waited in vain, and forgets the rows that
// they have found free. It reports whether a statement has waited in vain.
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
					l.add(e.id, len(g.entries) == 1)
				} else if g.kind != look && (e.answered || g.statement.Err == nil) {
					delete(l.rows, e.id)
				}
			}
		}
	}
	return waited
}

// add records a row of a statement that has waited in vain. only is whether the statement was for this row
// only: if not, the lock may be that of another row. The caller holds the mutex.
func (l *locks) add(id lease.RowID, only bool) {
	now := time.Now()
	l.last = now
	h := l.rows[id]
	switch {
	case h == nil:
		if l.rows == nil || len(l.rows) >= maxLocks {
			l.rows = map[lease.RowID]*lockedRow{}
		}
		id.Key = strings.Clone(id.Key) // the key may be a part of a long request
		l.rows[id] = &lockedRow{first: now, last: now}
	case only:
		h.last = now
	}
	atomic.StoreInt32(&l.any, 1)
}

// refuseLocked fails the requests on rows that count as locked. It returns those to decide now, and those
// that wait for the end of the batch: they are to try again, or for a row on which others have waited in vain.
func (d *dispatch) refuseLocked(requests []*request) (now, later []*request) {
	if atomic.LoadInt32(&d.engine.locks.any) == 0 {
		return requests, nil
	}
	now = nil
	later = nil
	var refused []*request
	for _, r := range requests {
		switch locked, due := d.engine.locks.find(r, d.lockWait); {
		case due || !locked && d.hasWaited(r):
			later = append(later, r)
		case locked:
			refused = append(refused, r)
		default:
			now = append(now, r)
		}
	}
	d.finish(refused, errLocked)
	return now, later
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

// stillWaiting fails those of the waiting requests that have waited for long enough, and returns the others.
func (d *dispatch) stillWaiting(waiting []*request, round int) []*request {
	var left, refused []*request
	for _, r := range waiting {
		locked, _ := d.engine.locks.find(r, d.lockWait)
		if locked && round > 0 || round == maxWaits {
			refused = append(refused, r)
		} else {
			left = append(left, r)
		}
	}
	d.finish(refused, errLocked)
	return left
}
