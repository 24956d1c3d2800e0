package postgres

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Another transaction may hold the lock of a row for a long time: an operator's open
// session, or a program that hangs. One locked row must not delay the decisions on all
// others. A statement waits for a lock for lockWait and then fails as a whole. The store
// then asks which of its rows are locked, and by which transaction, sends the other rows
// again, and postpones the requests on locked rows until the rest of the batch is finished.
// If the same transaction still holds the lock after another lockWait, the requests on all of
// its rows fail, and so do further ones for as long as it holds them. A row that is merely busy
// is locked by another transaction each time, and the requests on it go on waiting.
//
// If another transaction has inserted the row, no query shows the row. Such a row counts as
// locked if a statement for this row alone has waited for the lock in vain: for lockMemory, or
// until a query shows the row. The other transaction may be a batch of another proxy, which ends
// soon.

// lockWait is a fifth of the timeout, so that a batch has time to go on after it.
func lockWait(timeout time.Duration) time.Duration {
	wait := timeout / 5
	if wait < time.Millisecond {
		return time.Millisecond // 0 would be no bound
	}
	return wait
}

// lockMemory is for how long a row counts as locked by a known transaction. After that the
// server is asked which transaction holds the lock, which needs no wait. A row is forgotten
// after longMemory.
const (
	lockMemory = 500 * time.Millisecond
	longMemory = 10 * time.Second
)

// errLocked is the error of a hit on a locked row.
var errLocked = fmt.Errorf("%w: another transaction has locked the row of a key", ratelimit.ErrTimeout)

// locks are the rows that were found locked lately.
type locks struct {
	any   int32 // 1 if there may be rows; atomic, so that the usual batch takes no lock
	mu    sync.Mutex
	rows  map[rowKey]lockedRow // guarded by mu
	sweep time.Time            // when rows are to be deleted that are not believed any more; guarded by mu
}

// lockedRow is which transaction held the lock (0 if that is not known), how long it was seen
// to hold it, and until when that is believed. If the holder is not known, nothing is believed
// after end.
type lockedRow struct {
	holder int64
	wait   time.Duration
	until  time.Time
	end    time.Time
}

func soonest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// maxLocks bounds the rows. Further locked rows are not remembered.
const maxLocks = 10000

// add remembers a row that was locked for that long.
func (l *locks) add(id rowKey, holder int64, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rows == nil {
		l.rows = map[rowKey]lockedRow{}
	}
	if _, known := l.rows[id]; known || len(l.rows) < maxLocks {
		id.key = strings.Clone(id.key) // the key may be a part of a long request
		now := time.Now()
		row := lockedRow{holder: holder, wait: wait, until: now.Add(lockMemory), end: now.Add(lockMemory)}
		if holder == 0 {
			row.until = soonest(now.Add(2*wait), row.end)
		}
		l.rows[id] = row
		atomic.StoreInt32(&l.any, 1)
	}
}

// has reports whether a row was found locked lately.
func (l *locks) has(id rowKey) bool {
	if atomic.LoadInt32(&l.any) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.rows[id]
	return known
}

// holds reports whether a request has a hit on a row that was locked for that long. If such a
// row has to be looked at again, holds appends it to due.
func (l *locks) holds(r *request, wait time.Duration, due []rowKey) (bool, []rowKey) {
	if atomic.LoadInt32(&l.any) == 0 {
		return false, due
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !now.Before(l.sweep) {
		l.sweep = now.Add(lockMemory)
		for id, row := range l.rows {
			if now.Sub(row.until) >= longMemory {
				delete(l.rows, id)
			}
		}
		if len(l.rows) == 0 {
			atomic.StoreInt32(&l.any, 0)
		}
	}
	holds := false
	for i := range r.call.Hits {
		id := rowOf(&r.call.Hits[i])
		_, known := l.rows[id]
		row := l.rows[id]
		switch {
		case !known || row.wait < wait:
		case now.Before(row.until):
			holds = true
		default:
			due = append(due, id)
		}
	}
	return holds, due
}

// confirm updates the rows with the transactions that hold the locks now, and with the rows that
// no query shows. A row stays locked only if the same transaction still holds the lock, or if
// still no query shows the row.
func (l *locks) confirm(rows []rowKey, holders map[rowKey]int64, unseen map[rowKey]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, id := range rows {
		row := l.rows[id]
		known := row.holder != 0
		if known && row.holder == holders[id] {
			row.until = now.Add(lockMemory)
			l.rows[id] = row
			continue
		}
		if !known && unseen[id] && now.Before(row.end) {
			row.until = soonest(now.Add(2*row.wait), row.end)
			l.rows[id] = row
			continue
		}
		delete(l.rows, id)
	}
}
