package traefikplugin

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store/shards"
)

// requestQueue is the Requests that no request uses, and the queue that they enter.
type requestQueue struct {
	queue *shards.Queue // nil if the store decides at once, as a store in memory does
	free  chan *serve.Request
	made  int32 // how many there are; atomic
}

// queues are those of a database, by the timeout of their requests. The process's mutex guards them.
type queues struct {
	byTimeout map[time.Duration]*requestQueue
}

// spare is the number of unused Requests below which a queue makes another one. As many may be taken between
// the moment when a request counts them and that when it takes one.
const spare = 8

// maxPending bounds the requests that wait for a decision at once. Further requests wait until another one is
// decided.
const maxPending = 2048

// queueOf returns a database's queue for requests with that timeout. The caller holds the process's mutex.
func queueOf(d *host.Database, timeout time.Duration) *requestQueue {
	all := d.Keep(func() any { return &queues{map[time.Duration]*requestQueue{}} }).(*queues)
	q := all.byTimeout[timeout]
	if q == nil {
		q = &requestQueue{free: make(chan *serve.Request, maxPending)}
		if d.Postgres != nil {
			q.queue = d.Postgres.OpenQueue(timeout, serve.Filled, serve.Delivered)
		}
		all.byTimeout[timeout] = q
	}
	return q
}

// grow adds a Request, unless there are maxPending.
func grow(q *requestQueue) {
	if atomic.AddInt32(&q.made, 1) > maxPending {
		atomic.AddInt32(&q.made, -1)
		return
	}
	q.free <- newRequest()
}

// newRequest returns a Request with a Call. The worker of a queue owns it while the Call is in the queue.
func newRequest() *serve.Request {
	q := &serve.Request{Call: batch.NewCall()}
	q.Call.Owner = q
	return q
}
