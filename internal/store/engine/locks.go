package engine

import (
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Another transaction may hold the lock of a row for a long time: an operator's open session, or a program
// that hangs. One locked row must not delay the decisions on other rows. A statement waits for a lock for
// lockWait, and then fails as a whole. The batch immediately retries its requests, each in its own statement
// with a very short lock timeout, which finds the locked rows. Requests on locked rows, and further requests
// on a row with a recent lock timeout, go into the side queue of the batch's queue (Engine.newQueue). One
// worker decides them one by one, and the statements of its batch share one lockWait. So locked rows occupy
// at most one worker, however many rows are locked.
//
// A busy row, which the batches of other proxies lock one after the other, becomes free after some of these
// batches (TestRequestWaitsForBusyRow). A row that has had lock timeouts for lockedWaits counts as locked.
// Requests on a row that counts as locked fail immediately, except that one request in each 100 ms tries the
// row again (lease.LockStateOf).

// errLocked is the error of a hit on a row that another transaction has locked.
var errLocked = fmt.Errorf("%w: a transaction that has not ended has locked the row of a key: it is open, "+
	"or its commit waits for a synchronous standby", ratelimit.ErrTimeout)

const (
	// A wait for a lock takes at most 1/lockShare of the timeout, so that a batch has time to continue.
	lockShare = 5

	// lockedWaits is the number of lockWaits between the first and the last lock timeout of a row that counts
	// as locked.
	lockedWaits = 2
)

// findLocked returns the highest LockState of the rows of a request.
func (w *work) findLocked(r *request) lease.LockState {
	highest := lease.Free
	for i := range r.Hits {
		state := lease.LockStateOf(w.engine.rows, rowOf(&r.Hits[i]), lockedWaits*w.lockWait)
		if state > highest {
			highest = state
		}
	}
	return highest
}

// refuseLocked fails the requests on rows that count as locked, and returns the requests with free rows only.
// It puts the other requests into the side queue: they must retry a locked row, or one of their rows had a
// recent lock timeout.
func (w *work) refuseLocked(requests []*request) []*request {
	var now, later, refused []*request
	for _, r := range requests {
		switch w.findLocked(r) {
		case lease.Free:
			now = append(now, r)
		case lease.Locked:
			refused = append(refused, r)
		default:
			later = append(later, r)
		}
	}
	w.finish(refused, errLocked)
	w.enterSide(later)
	return now
}

// enterSide puts requests into the side queue, which finishes them.
func (w *work) enterSide(requests []*request) {
	for _, r := range requests {
		r.finished = true
		batch.Send(w.side, r.Call, r.Arrived)
	}
}

// decideLocked decides calls that wait for locks, one by one. Calls that reach their lock timeout wait for
// the next batch, unless their rows now count as locked or they have waited for the queue's timeout.
func (w *work) decideLocked() error {
	toRepeat, err := w.decideRound(w.requests, w.lockWait/time.Duration(len(w.requests)), true)
	var later, refused []*request
	for _, r := range toRepeat {
		if w.findLocked(r) >= lease.Locked || time.Since(r.Arrived) >= w.queue.Timeout {
			refused = append(refused, r)
		} else {
			later = append(later, r)
		}
	}
	w.finish(refused, errLocked)
	if len(later) > 0 {
		health.Sleep(w.ctx, time.Millisecond) // the server may fail them immediately
		w.enterSide(later)
	}
	return err
}
