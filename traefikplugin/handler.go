package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// handler is the middleware. It is immutable after New.
type handler struct {
	process   *process
	upstream  *upstream
	databases *host.Databases
	site      *serve.Site

	// limits holds the limits if they are the same for all requests. If it is nil, prepare finds the limits
	// of each request.
	limits *serve.LimitSet

	requests *requestQueue
}

// ServeHTTP decides a request and serves it. It evaluates a policy first, so that the hits of the policy and
// of the configuration enter the queue together. A queue worker finishes all requests of a batch. ServeHTTP
// calls the upstream outside of recoverPanic, which must not handle the upstream's panics.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if atomic.LoadInt32(&h.process.attached) == 0 {
		h.process.watch(r)
	}
	rq := h.requests
	if len(rq.free) < minFree {
		grow(rq)
	}
	q := <-rq.free
	q.HTTP = r
	q.Writer = w
	q.Site = h.site
	q.Clients = h.site.Clients
	q.Limits = h.limits
	q.Finished = false
	q.Released = false
	now := time.Now()
	q.Began = now
	q.Arrived = now
	if q.Limits != nil || prepare(h, q) {
		queue := rq.queue
		if q.Limits.AwaitsDisk {
			queue = rq.synchronous
		}
		if queue != nil {
			store.Enter(queue, q.Call, q.Arrived)
		}
		if !q.Finished {
			finishAlone(h, q)
		}
	}
	if !q.Released {
		serveDecided(h, q, w, r)
		return
	}
	rq.free <- q
	pass(h.upstream, w.Header(), w, r)
}

// prepare evaluates the policy for a request and finds its limits. It reports whether the store must decide
// the request. If not, it finishes the request.
func prepare(h *handler, q *serve.Request) (needsStore bool) {
	needsStore = false // the result after a panic
	defer recoverPanic(h, q)
	if h.site.Policy != nil {
		removeForwarded(q.HTTP)
	}
	if needsStore, _ = serve.FindLimits(q); needsStore && q.Upload != nil { // no matcher fails
		needsStore = readUpload(h.requests, q)
	}
	if !needsStore {
		serve.Finish([]*serve.Request{q})
	}
	return needsStore
}

// readUpload reads the Upload of a request, which may take long. Meanwhile another Request is in the place of
// q, so that slow uploads do not take the Requests of others.
func readUpload(rq *requestQueue, q *serve.Request) bool {
	rq.free <- spares.Get().(*serve.Request)
	defer func() { spares.Put(<-rq.free) }()
	return serve.ReadUpload(q)
}

// finishAlone finishes a request that no worker has finished, because its store is closed, its hits are on
// several shards, or a worker panicked. Without a queue, or if the store was closed, it is decided first.
func finishAlone(h *handler, q *serve.Request) {
	defer recoverPanic(h, q)
	if h.requests.queue == nil || errors.Is(q.Call.Err, ratelimit.ErrClosed) {
		serve.Fill([]*serve.Request{q})
		serve.Take(q)
		serve.Finish([]*serve.Request{q})
		return
	}
	serve.FinishCalls([]*batch.Call{q.Call})
}

// serveDecided serves a decided request in the less frequent cases. In ServeHTTP, this code would cost the
// interpreter time for all requests.
func serveDecided(h *handler, q *serve.Request, w http.ResponseWriter, r *http.Request) {
	passes := q.Outcome.Status == 0
	forwards := passes && q.HasVerdict && h.site.Forwards
	if forwards {
		forward(r.Header, q)
	}
	flight := q.Flight
	settling := q.Settling
	status := q.Status
	body := q.Body
	serve.Release(q)
	h.requests.free <- q
	if flight != nil {
		defer flight.End() // the upstream panics to abort a response
		r = r.WithContext(flight.Context)
	}
	if forwards {
		r = r.WithContext(context.WithValue(r.Context(), forwardedKey, true))
	}
	if !passes {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
		return
	}
	if settling != nil {
		passWrapped(h.upstream, settling, w, r)
		return
	}
	pass(h.upstream, w.Header(), w, r)
}

// recoverPanic converts a panic of the plugin to an outcome without a decision. Use it with defer.
func recoverPanic(h *handler, q *serve.Request) {
	if failure := recover(); failure != nil {
		policy.Clear(&q.Verdict) // it may be an earlier request's
		q.Hits = nil
		q.Decisions = nil
		q.Outcome = serve.NoDecision(h.site.OnError, fmt.Errorf("panic: %v", failure))
		serve.LogNoDecision(q)
		serve.Respond(q)
	}
}
