package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// lock holds the times of the first and the last lock timeout of a row.
type lock struct{ first, last int64 }

const (
	// lockRetryInterval is the time between two requests that try a locked row, in microseconds.
	lockRetryInterval = int64(100 * time.Millisecond / time.Microsecond)

	// recentTimeout is the time after a lock timeout in which the row gets no jobs, and requests
	// on the row wait in a side queue, in microseconds.
	recentTimeout = int64(time.Second / time.Microsecond)

	// lockExpiry is the time after the last lock timeout at which a lock expires, in microseconds.
	lockExpiry = int64(10 * time.Second / time.Microsecond)
)

// setLock sets the lock of a row. The caller holds the mutex of the stripe.
func setLock(s *Set, r *Cached, l *lock) {
	if r.lock == nil && l != nil {
		atomic.AddInt64(&s.LockCount, 1)
	} else if r.lock != nil && l == nil {
		atomic.AddInt64(&s.LockCount, -1)
	}
	r.lock = l
}

// RecordLockTimeout records that a statement for this row alone reached its lock timeout.
func RecordLockTimeout(s *Set, id RowID) {
	withCached(s, id, true, func(r *Cached) {
		now := Now(s)
		l := &lock{first: now, last: now}
		if r.lock != nil {
			l.first = r.lock.first
		}
		setLock(s, r, l)
	})
}

// ClearLockTimeouts removes the lock of a row, after a statement has locked the row.
func ClearLockTimeouts(s *Set, id RowID) {
	withCached(s, id, false, func(r *Cached) { setLock(s, r, nil) })
}

// LockState classifies a row by its lock timeouts. The highest state of its rows applies to a request.
type LockState int

// The values of LockState.
const (
	Free   LockState = iota // no lock timeout within recentTimeout
	Waited                  // a lock timeout within recentTimeout
	Locked                  // the row counts as locked
	Due                     // the row counts as locked, and the caller must try it again
)

// LockStateOf returns the LockState of a row. A row counts as locked if its last lock timeout came at least
// wait after its first. Only one caller in each lockRetryInterval gets Due, because LockStateOf then records
// a lock timeout.
func LockStateOf(s *Set, id RowID, wait time.Duration) LockState {
	state := Free
	if atomic.LoadInt64(&s.LockCount) == 0 {
		return state
	}
	withCached(s, id, false, func(r *Cached) {
		if r.lock == nil {
			return
		}
		now := Now(s)
		age := now - r.lock.last
		switch {
		case r.lock.last-r.lock.first < int64(wait/time.Microsecond):
			if age < recentTimeout {
				state = Waited
			}
		case age < lockRetryInterval:
			state = Locked
		default:
			state = Due
			setLock(s, r, &lock{first: r.lock.first, last: now})
		}
	})
	return state
}

// HadLockTimeout reports whether a row had a lock timeout within recentTimeout.
func HadLockTimeout(s *Set, id RowID) bool { return LockStateOf(s, id, math.MaxInt64) == Waited }
