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
	store         *Store
	timeout       time.Duration
	fill, deliver func(calls []*batch.Call)

	open int32          // 0 before to is set, then toOne or toMany; atomic
	mu   sync.Mutex     // guards the setting of to
	to   []*batch.Queue // by engine
}

const toOne, toMany = 1, 2

// OpenQueue returns a queue with a fill and a deliver of its own, see batch.Options.
func (s *Store) OpenQueue(timeout time.Duration, fill, deliver func(calls []*batch.Call)) *Queue {
	return &Queue{store: s, timeout: timeout, fill: fill, deliver: deliver}
}

// Ask sends a call to the engine of its subject, and waits for its decision. With one engine, a batch fills
// its calls together. A queue delivers its calls. Not delivered are a call of several subjects, one that
// could not be filled, and one that finds no engine in time.
func Ask(q *Queue, c *batch.Call, arrived time.Time) {
	if atomic.LoadInt32(&q.open) == toOne {
		batch.Send(q.to[0], c, arrived)
	} else if !sendToAny(q, c, arrived) {
		return
	}
	batch.Wait(c)
}

// sendToAny sends a call to one of any number of engines. It reports false if the call has its decisions or
// an error instead.
func sendToAny(q *Queue, c *batch.Call, arrived time.Time) bool {
	err := prepare(q)
	if err != nil || len(q.to) > 1 { // the hits select the engine
		c.Err = batch.PanicError(func() { q.fill([]*batch.Call{c}) })
	}
	switch {
	case err != nil:
		c.Err = err
		return false
	case len(q.to) == 1:
		batch.Send(q.to[0], c, arrived)
		return true
	case c.Err != nil:
		return false
	}
	shard := q.store.shardOf(c.Hits)
	if shard == several {
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		c.Err = q.store.takeSeveral(context.Background(), q.timeout, c.Hits, c.Decisions)
		return false
	}
	batch.Send(q.to[shard], c, arrived)
	return true
}

// prepare waits for the engines, and opens a queue of each. The error is that of engines that are not found
// in time.
func prepare(q *Queue) error {
	s := q.store
	if atomic.LoadInt32(&q.open) != 0 {
		return nil
	}
	if _, err := s.await(context.Background(), q.timeout); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.to != nil {
		return nil
	}
	open := int32(toOne)
	fill := q.fill
	if len(s.engines) > 1 {
		open = toMany
		fill = nil
	}
	for _, one := range s.engines {
		q.to = append(q.to, one.OpenQueue(q.timeout, fill, q.deliver))
	}
	atomic.StoreInt32(&q.open, open)
	return nil
}
