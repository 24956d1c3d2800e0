package traefikplugin

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
)

// requestQueue holds queues of the store and a pool of Requests for them.
type requestQueue struct {
	queue       *store.Queue // nil for a store in memory, which needs no queue
	synchronous *store.Queue // for requests that may wait for a synchronous standby; nil with queue
	free        chan *serve.Request
	count       int32 // the number of Requests, free or in use; atomic
}

// queues maps timeouts of requests to a database's queues. The process's mutex guards the map.
type queues map[time.Duration]*requestQueue

// minFree is the number of free Requests below which ServeHTTP adds another. It is above 1, because
// concurrent requests may take free Requests between the check and the receive in ServeHTTP.
const minFree = 8

// maxPending bounds the Requests of a queue. Further requests wait for a free Request.
const maxPending = 2048

// queueOf returns a database's queue for requests with a timeout. It creates the queue on first use. The
// caller holds the process's mutex.
func queueOf(d *host.Database, timeout time.Duration) *requestQueue {
	byTimeout := d.Keep(func() any { return queues{} }).(queues)
	q := byTimeout[timeout]
	if q == nil {
		q = &requestQueue{free: make(chan *serve.Request, maxPending)}
		if d.Postgres != nil {
			q.queue = d.Postgres.OpenQueue(timeout, false, serve.FillCalls, serve.FinishCalls)
			q.synchronous = d.Postgres.OpenQueue(timeout, true, serve.FillCalls, serve.FinishCalls)
		}
		byTimeout[timeout] = q
	}
	return q
}

// grow adds a Request unless there are already maxPending.
func grow(q *requestQueue) {
	if atomic.AddInt32(&q.count, 1) > maxPending {
		atomic.AddInt32(&q.count, -1)
		return
	}
	q.free <- newRequest()
}

// spares has Requests for queues, see readUpload.
var spares = sync.Pool{New: func() any { return newRequest() }}

// newRequest returns a Request for a queue. A worker of the queue owns it and its Call while the Call is in
// the queue.
func newRequest() *serve.Request {
	request := &serve.Request{Call: batch.NewCall()}
	request.Call.Owner = request
	return request
}
