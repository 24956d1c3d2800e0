package batch

import (
	"runtime"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
)

// slowBatch is the time in flight after which another worker collects the next batch, so that one slow
// statement does not delay all calls.
const slowBatch = 5 * time.Millisecond

// startWorker runs a worker. The caller has set Queue.collecting.
func startWorker(q *Queue) {
	q.mu.Lock()
	w := takeWorker(q)
	q.mu.Unlock()
	work(q, w)
}

// takeWorker returns an idle or a new worker and counts it as running. The caller holds the mutex.
func takeWorker(q *Queue) *worker {
	q.running++
	n := len(q.idleWorkers)
	if n == 0 {
		return &worker{}
	}
	w := q.idleWorkers[n-1]
	q.idleWorkers = q.idleWorkers[:n-1]
	w.replaced = false
	return w
}

// work runs batches until no calls are left, or another worker collects. A panic must not leave this
// goroutine: in a plugin it would end the proxy.
func work(q *Queue, w *worker) {
	for {
		runtime.Gosched() // let callers that are about to send join this batch
		silent := q.health.Silent()
		calls, expired := collect(q, w, silent)
		if len(expired) > 0 {
			expireCalls(q, expired)
		}
		if len(calls) == 0 {
			if stopCollecting(q) {
				break
			}
			continue
		}
		started := time.Now()
		deadline := calls[0].Arrived.Add(health.Patience(q.Timeout, silent))
		if calls = fillCalls(q, calls); len(calls) > 0 {
			q.decide(calls, deadline)
		}
		if finishBatch(q, w, started, deadline) {
			break
		}
	}
	q.mu.Lock()
	q.running--
	q.idleWorkers = append(q.idleWorkers, w)
	q.mu.Unlock()
}

// collect removes the pending calls of the next batch, and expired calls, which have too little time left for
// a batch. It returns both in the order of arrival. Expired calls must not join a batch: a batch with their
// deadline would end too early for all of its calls. silent reports an outage.
func collect(q *Queue, w *worker, silent bool) ([]*Call, []*Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	pending := q.pending
	if len(pending) == 0 {
		return nil, nil
	}
	oldest := time.Now().Add(-maxWait(&q.pace, q.Timeout, silent))
	late := 0
	for late < len(pending) && pending[late].Arrived.Before(oldest) {
		late++
	}
	expired := append([]*Call(nil), pending[:late]...)
	end := late
	hits := 0
	for end < len(pending) && hits < q.pace.maxHits {
		n := 1 // a call counts as one hit until it is filled
		if q.fill == nil {
			n = len(pending[end].Hits)
		}
		hits += n
		end++
	}
	if late == 0 && end == len(pending) {
		q.pending = w.calls[:0] // the usual case copies nothing
		w.calls = pending
	} else {
		w.calls = append(w.calls[:0], pending[late:end]...)
		n := copy(pending, pending[end:])
		for i := n; i < len(pending); i++ {
			pending[i] = nil
		}
		q.pending = pending[:n]
	}
	if len(w.calls) == 0 {
		return nil, expired
	}
	w.inFlight = true
	w.sample = sample{hits: hits, maxHits: q.pace.maxHits, only: q.batchesInFlight == 0}
	q.batchesInFlight++
	if w.slowTimer == nil {
		w.slowTimer = time.AfterFunc(slowBatch, func() { replaceSlowWorker(q, w) })
	} else {
		w.slowTimer.Reset(slowBatch)
	}
	return w.calls, expired
}

// stopCollecting reports whether a worker that found no calls may end. If it may, the next call starts
// another worker.
func stopCollecting(q *Queue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) > 0 {
		return false
	}
	q.collecting = false
	return true
}

// finishBatch records the time of a batch, and reports whether another worker collects now.
func finishBatch(q *Queue, w *worker, started, deadline time.Time) bool {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	w.inFlight = false
	w.slowTimer.Stop()
	q.batchesInFlight--
	w.sample.took = now.Sub(started)
	w.sample.late = w.sample.took >= q.Timeout || !now.Before(deadline)
	q.pace.update(w.sample, q.Timeout, q.maxWorkers)
	return w.replaced
}

// replaceSlowWorker runs when the batch of w has been in flight for slowBatch. It starts another worker,
// which becomes the collecting one, or runs again later if Options.Workers are running.
func replaceSlowWorker(q *Queue, w *worker) {
	var other *worker
	q.mu.Lock()
	if w.inFlight && !w.replaced {
		if q.running < q.maxWorkers {
			w.replaced = true
			other = takeWorker(q)
		} else {
			w.slowTimer.Reset(slowBatch)
		}
	}
	q.mu.Unlock()
	if other != nil {
		work(q, other)
	}
}

// expireCalls ends the wait for calls that have too little time left.
func expireCalls(q *Queue, calls []*Call) {
	if q.expire == nil {
		Finish(q, calls, q.health.NoDecision(nil, true))
		return
	}
	if calls = fillCalls(q, calls); len(calls) > 0 {
		q.expire(calls)
	}
}

// fillCalls sets the hits of calls by Options.Fill. It finishes the calls that fail and returns the others.
func fillCalls(q *Queue, calls []*Call) []*Call {
	if q.fill == nil || callEach(q.fill, calls) {
		return calls
	}
	var failed []*Call
	n := 0
	for _, c := range calls {
		if c.Err != nil {
			failed = append(failed, c)
			continue
		}
		calls[n] = c
		n++
	}
	Finish(q, failed, nil)
	return calls[:n]
}
