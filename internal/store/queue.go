package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Queue passes the calls of a proxy to a queue of each engine. It lives as long as its store.
type Queue struct {
	store         *Store
	timeout       time.Duration
	synchronous   bool
	fill, deliver func(calls []*batch.Call)

	opened int32          // the number of queues, or 0 before they are set; atomic
	mu     sync.Mutex     // guards queues until opened is set
	queues []*batch.Queue // by engine
}

// OpenQueue returns a Queue. Its arguments are as for engine.Engine.OpenQueue.
func (s *Store) OpenQueue(timeout time.Duration, synchronous bool,
	fill, deliver func(calls []*batch.Call)) *Queue {
	return &Queue{store: s, timeout: timeout, synchronous: synchronous, fill: fill, deliver: deliver}
}

// Enter sends a call to the engine of its subject and waits for its decision. With one engine, fill is called
// once for all calls of a batch, otherwise once for each call. deliver is not called for a call with hits in
// several shards, for a call that fill failed, or if the engines are not found in time.
func Enter(q *Queue, c *batch.Call, arrived time.Time) {
	if atomic.LoadInt32(&q.opened) == 1 {
		batch.Send(q.queues[0], c, arrived)
	} else if !sendToAny(q, c, arrived) {
		return
	}
	batch.Wait(c)
}

// sendToAny sends a call to the engine of its subject. It returns false if the call already has its decisions
// or an error, and was not sent.
func sendToAny(q *Queue, c *batch.Call, arrived time.Time) bool {
	var err error
	if atomic.LoadInt32(&q.opened) == 0 {
		err = prepare(q)
		arrived = time.Now() // the decision has the whole timeout
	}
	if err != nil || len(q.queues) > 1 { // the hits select the engine
		if failure := batch.PanicError(func() { q.fill([]*batch.Call{c}) }); failure != nil {
			c.Err = failure
		}
	}
	switch {
	case err != nil:
		c.Err = err
		return false
	case len(q.queues) == 1:
		batch.Send(q.queues[0], c, arrived)
		return true
	case c.Err != nil:
		return false
	}
	shard := q.store.commonShard(c.Hits)
	if shard == severalShards {
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		c.Err = q.store.takeSeveral(context.Background(), arrived, q.timeout, c.Hits, c.Decisions)
		return false
	}
	batch.Send(q.queues[shard], c, arrived)
	return true
}

// prepare waits for the engines, and opens a queue of each. It fails if the engines are not found in time.
func prepare(q *Queue) error {
	s := q.store
	atomic.StoreInt32(&s.timeout, int32(q.timeout/time.Millisecond))
	if err := s.await(context.Background(), q.timeout); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queues != nil {
		return nil
	}
	fill := q.fill
	if len(s.engines) > 1 {
		fill = nil
	}
	for _, e := range s.engines {
		q.queues = append(q.queues, e.OpenQueue(q.timeout, q.synchronous, fill, q.deliver))
	}
	atomic.StoreInt32(&q.opened, int32(len(q.queues)))
	return nil
}
