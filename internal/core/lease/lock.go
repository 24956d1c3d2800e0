package lease

import (
	"sync/atomic"
	"time"
)

// lock holds the times of the first and the last lock timeout of a row.
type lock struct{ first, last int64 }

const (
	// lockRetryInterval is the time between two requests that try a locked row, in microseconds.
	lockRetryInterval = int64(100 * time.Millisecond / time.Microsecond)

	// backgroundPause is the time after a lock timeout in which the row gets no background calls, in
	// microseconds.
	backgroundPause = int64(time.Second / time.Microsecond)

	// lockExpiry is the time after the last lock timeout at which a lock expires, in microseconds.
	lockExpiry = int64(10 * time.Second / time.Microsecond)
)

// setLock sets the lock of a row. The caller holds the mutex of the stripe.
func setLock(s *Set, r *Row, l *lock) {
	if r.lock == nil && l != nil {
		atomic.AddInt64(&s.locks, 1)
	} else if r.lock != nil && l == nil {
		atomic.AddInt64(&s.locks, -1)
	}
	r.lock = l
}

// AnyLocks reports whether any row has a lock.
func AnyLocks(s *Set) bool { return atomic.LoadInt64(&s.locks) > 0 }

// RecordLockTimeout records that a statement for this row alone reached its lock timeout.
func RecordLockTimeout(s *Set, id RowID) {
	withRow(s, id, true, func(_ *Stripe, r *Row) {
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
	withRow(s, id, false, func(_ *Stripe, r *Row) { setLock(s, r, nil) })
}

// Locked reports whether a row counts as locked, which requires at least wait between its first and its last
// lock timeout. due reports whether the caller must try the row again. Only one caller in each
// lockRetryInterval must.
func Locked(s *Set, id RowID, wait time.Duration) (locked, due bool) {
	locked = false
	due = false
	withRow(s, id, false, func(_ *Stripe, r *Row) {
		if r.lock == nil || r.lock.last-r.lock.first < int64(wait/time.Microsecond) {
			return
		}
		locked = true
		if now := Now(s); now-r.lock.last >= lockRetryInterval {
			setLock(s, r, &lock{first: r.lock.first, last: now})
			due = true
		}
	})
	return locked, due
}

// HadLockTimeout reports whether a statement reached its lock timeout on a row within backgroundPause.
func HadLockTimeout(s *Set, id RowID) bool {
	recent := false
	if !AnyLocks(s) {
		return recent
	}
	withRow(s, id, false,
		func(_ *Stripe, r *Row) { recent = r.lock != nil && Now(s)-r.lock.last < backgroundPause })
	return recent
}
