package shards

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Queue is a queue of each engine, for calls that a proxy sends itself. It lasts as long as its store.
type Queue struct {
	store   *Store
	timeout time.Duration
	deliver func(calls []*batch.Call)

	open int32          // 1 when to is set; atomic
	mu   sync.Mutex     // guards the setting of to
	to   []*batch.Queue // by engine
}

// OpenQueue returns a queue with a deliver of its own, see batch.Options.
func (s *Store) OpenQueue(timeout time.Duration, deliver func(calls []*batch.Call)) *Queue {
	return &Queue{store: s, timeout: timeout, deliver: deliver}
}

// Ask has a call decided that has arrived, and waits for it. The call of a queue was delivered then, unless
// that has failed. Other calls were not: those of several subjects, and those without an engine.
func Ask(q *Queue, c *batch.Call, arrived time.Time) {
	if atomic.LoadInt32(&q.open) == 0 && !prepare(q, c) {
		return
	}
	to := q.to[0]
	if len(q.to) > 1 {
		shard := q.store.shardOf(c.Hits)
		if shard == several {
			c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
			c.Err = q.store.takeSeveral(context.Background(), q.timeout, c.Hits, c.Decisions)
			return
		}
		to = q.to[shard]
	}
	batch.Send(to, c, arrived)
	batch.Wait(c)
}

// prepare waits for the engines, and opens a queue of each. It sets the error of a call, and returns false,
// if the engines are not found in time.
func prepare(q *Queue, c *batch.Call) bool {
	s := q.store
	if _, err := s.await(context.Background(), q.timeout); err != nil {
		c.Err = err
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.to == nil {
		for _, one := range s.engines {
			q.to = append(q.to, one.OpenQueue(q.timeout, q.deliver))
		}
		atomic.StoreInt32(&q.open, 1)
	}
	return true
}
