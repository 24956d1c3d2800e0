package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// lock has the times of the first and the last lock timeout of a row, in microseconds of Now.
type lock struct{ first, last int64 }

const (
	// lockMemory is the time for which a row counts as locked until another request tries, in microseconds.
	lockMemory = int64(100 * time.Millisecond / time.Microsecond)

	// waitMemory is the time after a lock timeout of a row in which no call that nobody waits for is sent to
	// the row.
	waitMemory = int64(time.Second / time.Microsecond)

	// longMemory is the time for which a lock timeout is remembered.
	longMemory = int64(10 * time.Second / time.Microsecond)

	// mostTight bounds the time for which a row is tight.
	mostTight = 24 * time.Hour
)

// setLock sets the lock of a row. The caller holds the mutex of the stripe.
func setLock(t *Set, r *Row, l *lock) {
	if r.lock == nil && l != nil {
		atomic.AddInt64(&t.locks, 1)
	} else if r.lock != nil && l == nil {
		atomic.AddInt64(&t.locks, -1)
	}
	r.lock = l
}

// AnyLocks reports whether rows with a lock timeout are remembered.
func AnyLocks(t *Set) bool { return atomic.LoadInt64(&t.locks) > 0 }

// TimedOut remembers that a statement for a row alone gave up waiting for its lock.
func TimedOut(t *Set, id RowID) {
	change(t, id, true, func(_ *Stripe, r *Row) {
		now := Now(t)
		l := &lock{first: now, last: now}
		if r.lock != nil {
			l.first = r.lock.first
		}
		setLock(t, r, l)
	})
}

// Unlocked forgets the lock timeouts of a row that a statement has found free.
func Unlocked(t *Set, id RowID) {
	change(t, id, false, func(_ *Stripe, r *Row) { setLock(t, r, nil) })
}

// Locked reports whether the row of a hit counts as locked: at least wait lies between its first and its last
// lock timeout. due is whether the caller is to try again: the first caller is, and for all others the row
// counts as locked meanwhile.
func Locked(t *Set, id RowID, wait time.Duration) (locked, due bool) {
	locked = false
	due = false
	change(t, id, false, func(_ *Stripe, r *Row) {
		if r.lock == nil || r.lock.last-r.lock.first < int64(wait/time.Microsecond) {
			return
		}
		locked = true
		if now := Now(t); now-r.lock.last >= lockMemory {
			setLock(t, r, &lock{first: r.lock.first, last: now})
			due = true
		}
	})
	return locked, due
}

// HasTimedOut reports whether a statement has given up waiting for a row lately.
func HasTimedOut(t *Set, id RowID) bool {
	lately := false
	if !AnyLocks(t) {
		return lately
	}
	change(t, id, false,
		func(_ *Stripe, r *Row) { lately = r.lock != nil && Now(t)-r.lock.last < waitMemory })
	return lately
}

// setTight sets until when a row is tight; 0 is not tight. The caller holds the mutex of the stripe.
func setTight(t *Set, r *Row, until int64) {
	if r.tight == 0 && until != 0 {
		atomic.AddInt64(&t.tight, 1)
	} else if r.tight != 0 && until == 0 {
		atomic.AddInt64(&t.tight, -1)
	}
	r.tight = until
}

// Tighten remembers for a time that a row is likely to refuse. A transaction on the row looks before it
// takes.
func Tighten(t *Set, id RowID, wait time.Duration) {
	if wait > mostTight {
		wait = mostTight
	}
	change(t, id, true, func(_ *Stripe, r *Row) {
		if until := Now(t) + int64(wait/time.Microsecond); until > r.tight {
			setTight(t, r, until)
		}
	})
}

// Tight reports whether a row of a hit is likely to refuse.
func Tight(t *Set, hits []ratelimit.Hit) bool {
	tight := false
	if atomic.LoadInt64(&t.tight) == 0 {
		return tight
	}
	for i := range hits {
		change(t, RowOf(hits[i].Limit, hits[i].Key), false,
			func(_ *Stripe, r *Row) { tight = tight || r.tight > Now(t) })
	}
	return tight
}
