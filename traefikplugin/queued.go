package traefikplugin

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
)

// requestQueue holds a queue of the store, and a pool of Requests for it.
type requestQueue struct {
	queue *store.Queue // nil if the store decides at once, as a store in memory does
	free  chan *serve.Request
	made  int32 // the number of Requests, free or in use; atomic
}

// queues holds the queues of a database, by the timeout of their requests. The process's mutex guards it.
type queues map[time.Duration]*requestQueue

// spare bounds the requests that may take a Request between the check and the receive in ServeHTTP. With
// fewer free ones, ServeHTTP adds another.
const spare = 8

// maxPending bounds the Requests of a queue. Further requests wait until one is free.
const maxPending = 2048

// queueOf returns a database's queue for requests with a timeout, and creates it on first use. The caller
// holds the process's mutex.
func queueOf(d *host.Database, timeout time.Duration) *requestQueue {
	all := d.Keep(func() any { return queues{} }).(queues)
	q := all[timeout]
	if q == nil {
		q = &requestQueue{free: make(chan *serve.Request, maxPending)}
		if d.Postgres != nil {
			q.queue = d.Postgres.OpenQueue(timeout, serve.FillCalls, serve.DeliverCalls)
		}
		all[timeout] = q
	}
	return q
}

// grow adds a Request, unless there are maxPending.
func grow(q *requestQueue) {
	if atomic.AddInt32(&q.made, 1) > maxPending {
		atomic.AddInt32(&q.made, -1)
		return
	}
	// A worker of the queue owns the Request and its Call while the Call is in the queue.
	request := &serve.Request{Call: batch.NewCall()}
	request.Call.Owner = request
	q.free <- request
}
