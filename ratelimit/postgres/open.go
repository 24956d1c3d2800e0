package postgres

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func init() { batch.OpenQueue = openQueue }

// openQueue is batch.OpenQueue.
func openQueue(store ratelimit.Store, timeout time.Duration, fill, deliver func(calls []*batch.Call)) *batch.Queue {
	s, ok := store.(*Store)
	if !ok {
		return nil
	}
	var q *batch.Queue
	q = batch.NewQueue(batch.Options{
		Timeout: timeout, Workers: s.workers, Fill: fill, Deliver: deliver,
		Decide: func(calls []*batch.Call, deadline time.Time) {
			storeAllKeys(calls)
			if atomic.LoadInt32(&s.paused) != 0 {
				batch.Finish(q, calls, batch.ErrPaused)
				return
			}
			calls = takeLeased(s, q, calls)
			if calls = sift(s, q, calls); len(calls) > 0 {
				s.engine.decide(q, calls, deadline)
			}
		},
		Expire: func(calls []*batch.Call) {
			storeAllKeys(calls)
			s.engine.failCalls(q, calls, ratelimit.ErrTimeout)
		},
	})
	s.mu.Lock()
	s.opened = append(s.opened, q)
	s.mu.Unlock()
	return q
}

// sift does for the calls of an opened queue what ask does before a call enters a queue.
// It returns the calls that the database is to be asked about.
func sift(s *Store, q *batch.Queue, calls []*batch.Call) []*batch.Call {
	s.mu.Lock()
	unavailable := s.unavailable()
	s.mu.Unlock()
	if errors.Is(unavailable, ratelimit.ErrClosed) {
		batch.Finish(q, calls, unavailable)
		return nil
	}
	if unavailable != nil {
		s.engine.failCalls(q, calls, unavailable)
		return nil
	}
	if refuseAll(s.engine.blocked, calls) == 0 {
		return calls
	}
	var refused []*batch.Call
	n := 0
	for _, c := range calls {
		if len(c.Decisions) > 0 {
			refused = append(refused, c)
			continue
		}
		calls[n] = c
		n++
	}
	s.engine.counts.add(Stats{Blocked: int64(len(refused))})
	batch.Finish(q, refused, nil)
	return calls[:n]
}
