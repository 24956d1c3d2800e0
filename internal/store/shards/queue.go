package shards

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Queue is a queue of each engine, for calls that a proxy sends itself. It lasts as long as its store.
type Queue struct {
	store   *Store
	timeout time.Duration
	deliver func(calls []*batch.Call)

	opened sync.Once      // guards to
	to     []*batch.Queue // by engine
}

// OpenQueue returns a queue with a deliver of its own, see batch.Options.
func (s *Store) OpenQueue(timeout time.Duration, deliver func(calls []*batch.Call)) *Queue {
	return &Queue{store: s, timeout: timeout, deliver: deliver}
}

// Ask has a call decided that has arrived, and waits for it. The call of a queue was delivered then, unless that has
// failed. Other calls were not: those of several subjects, and those without an engine.
func Ask(q *Queue, c *batch.Call, arrived time.Time) {
	s := q.store
	if !engine.Ready(s.setup) {
		if _, err := s.await(context.Background(), q.timeout); err != nil {
			c.Err = err
			return
		}
	}
	q.opened.Do(func() {
		for _, one := range s.engines {
			q.to = append(q.to, one.OpenQueue(q.timeout, q.deliver))
		}
	})
	shard := 0
	if len(q.to) > 1 {
		shard = s.shardOf(c.Hits)
	}
	if shard == several {
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		c.Err = s.takeSeveral(context.Background(), q.timeout, c.Hits, c.Decisions)
		return
	}
	batch.Send(q.to[shard], c, arrived)
	batch.Wait(c)
}
