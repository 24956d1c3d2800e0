package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
)

// maxTimeouts is the number of different timeouts that get their own queue. A program uses one or two, unless
// it computes timeouts from deadlines.
const maxTimeouts = 16

// queueKey selects a queue of Call.
type queueKey struct {
	timeout time.Duration
	lane    int
}

// queueFor returns the queue for a timeout in a lane. After maxTimeouts different timeouts, further ones are
// rounded down by up to a fifth.
func (e *Engine) queueFor(timeout time.Duration, lane int) *batch.Queue {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := queueKey{timeout, lane}
	q := e.byTimeout[key]
	if q == nil && len(e.byTimeout) >= maxTimeouts*len(e.lanes) {
		key.timeout = roundDown(timeout)
		q = e.byTimeout[key]
	}
	if q == nil {
		q = e.newQueue(key.timeout, lane, nil, nil)
		e.byTimeout[key] = q
	}
	return q
}

// roundDown clears all but the three highest bits of a duration, so that similar durations become equal.
func roundDown(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 8 {
		unit *= 2
	}
	return d / unit * unit
}

// OpenQueue returns a queue for calls that a proxy sends itself. synchronous is set for calls with a hit that
// may wait for a standby. fill, which may be nil, and deliver are those of batch.Options. The queue lasts as
// long as the engine.
func (e *Engine) OpenQueue(timeout time.Duration, synchronous bool,
	fill, deliver func(calls []*batch.Call)) *batch.Queue {
	e.mu.Lock()
	defer e.mu.Unlock()
	lane := plainLane
	if synchronous {
		lane = standbyLane
	}
	return e.newQueue(timeout, lane, fill, deliver)
}

// newQueue returns a queue, with a side queue for locked rows. The caller holds the mutex.
func (e *Engine) newQueue(timeout time.Duration, lane int,
	fill, deliver func(calls []*batch.Call)) *batch.Queue {
	o := batch.Options{Timeout: timeout, Workers: 1, Health: e.health, Deliver: deliver}
	side := &decider{engine: e}
	side.queue = batch.NewQueue(o, side)
	side.side = side.queue
	d := &decider{engine: e, side: side.queue, backlog: e.lanes[lane].backlog}
	o.Workers = e.workers
	o.Fill = fill
	d.queue = batch.NewQueue(o, d)
	e.queues = append(e.queues, d.queue, side.queue)
	return d.queue
}

// decider decides the calls of a queue. It implements batch.Decider.
type decider struct {
	engine  *Engine
	queue   *batch.Queue
	side    *batch.Queue   // for requests on locked rows; in the decider of a side queue, queue itself
	backlog *batch.Backlog // nil in the decider of a side queue
}

// isSide reports whether the queue is a side queue, for requests on locked rows.
func (d *decider) isSide() bool { return d.side == d.queue }

// Expire implements batch.Decider.
func (d *decider) Expire(calls []*batch.Call, err error) {
	if d.isSide() {
		err = errLocked
	} else if d.queue.Deliver != nil {
		storeKeys(calls)
	}
	d.failCalls(calls, err)
}

// DecideBatch implements batch.Decider. Without Deliver, Call has tried decideFromMemory before.
func (d *decider) DecideBatch(calls []*batch.Call, deadline time.Time) {
	if d.queue.Deliver != nil && !d.isSide() {
		unavailable := d.engine.unavailable(d.queue.Timeout)
		if decideFromMemory(d.engine, calls, unavailable) > 0 {
			calls = d.finishFromMemory(calls)
		}
		if unavailable != nil {
			batch.Finish(d.queue, calls, unavailable)
			return
		}
		if len(calls) == 0 {
			return
		}
	}
	decideInDatabase(d, calls, deadline)
}

// openLanes makes the lanes of a new engine.
func (e *Engine) openLanes() {
	for i := range e.lanes {
		l := &lane{}
		e.lanes[i] = l
		l.backlog = batch.NewBacklog(batch.BacklogOptions{
			Closing: e.closing, Health: e.health,
			Send: func() { _, _ = batch.Enter(context.Background(), l.queue, batch.NewCall(), time.Now()) },
			Report: func(lost int, err error) {
				e.report(fmt.Errorf("ratelimit/postgres: %d changes of counters are lost: %w", lost, err))
			},
		})
		l.queue = e.newQueue(closeTimeout, i, nil, nil)
	}
}
