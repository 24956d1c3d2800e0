package traefikplugin

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store/shards"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// handler is the middleware. It does not change after New.
type handler struct {
	upstream *upstream
	name     string
	process  *process
	use      *host.Handle
	site     *serve.Site
	forward  bool // requests get headers with what the policy says

	// plain are the limits of all requests. Nil if each request has to be asked about before the queue.
	plain *serve.LimitSet

	requests *requestQueue
}

// ServeHTTP has the request decided, and serves it. With a policy, it asks the policy first: the hits of the
// policy go with those of the configuration through the queue. A worker of the queue delivers all requests of
// a batch. The upstream is called outside of contain, because a panic of the upstream is not a panic of the
// plugin.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := h.requests
	if len(to.free) < spare {
		grow(to)
	}
	q := <-to.free
	q.HTTP = r
	q.Writer = w
	q.Site = h.site
	q.Limits = h.plain
	q.Delivered = false
	q.Began = time.Now()
	q.Arrived = q.Began
	if q.Limits != nil || begin(h, q) {
		if to.queue != nil {
			shards.Ask(to.queue, q.Call, q.Arrived)
		}
		if !q.Delivered {
			deliver(h, q)
		}
	}
	if q.HTTP != nil || q.Asked || !q.Admitted || q.Flight != nil {
		serveDecided(h, q, w, r)
		return
	}
	to.free <- q
	pass(h.upstream, w, r)
}

// begin asks the policy about a request, and finds its limits. It reports whether the store decides the
// request. Otherwise it delivers the request.
func begin(h *handler, q *serve.Request) (waits bool) {
	waits = false // after a panic, too
	defer contain(h, q)
	if h.site.Policy != nil {
		removeForwarded(q.HTTP.Header)
	}
	if waits, _ = serve.Begin(q); !waits { // no matcher fails
		serve.Deliver([]*serve.Request{q})
	}
	return waits
}

// deliver delivers a request that no worker has: its store is closed, the request is of several shards, or
// delivery has failed. Without a queue, it asks the store first.
func deliver(h *handler, q *serve.Request) {
	defer contain(h, q)
	if h.requests.queue == nil || errors.Is(q.Call.Err, ratelimit.ErrClosed) {
		serve.Fill([]*serve.Request{q})
		serve.Take(q)
		serve.Deliver([]*serve.Request{q})
		return
	}
	serve.Delivered([]*batch.Call{q.Call})
}

// serveDecided serves a request that was decided. It is a function of its own because ServeHTTP would take
// longer for all requests.
func serveDecided(h *handler, q *serve.Request, w http.ResponseWriter, r *http.Request) {
	if q.Admitted && q.Asked && h.forward {
		forward(r.Header, q)
	}
	admitted := q.Admitted
	flight := q.Flight
	settling := q.Settling
	status := q.Outcome.Status
	body := q.Body
	q.Release()
	h.requests.free <- q
	if flight != nil {
		defer flight.End() // after a panic of the upstream, too, as when it aborts the response
		r = r.WithContext(flight.Context)
	}
	if !admitted {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
		return
	}
	if settling != nil {
		passSettled(h.upstream, settling, w, r)
		return
	}
	pass(h.upstream, w, r)
}

// contain must be deferred. It turns a panic of the plugin into an outcome without a decision.
func contain(h *handler, q *serve.Request) {
	if failure := recover(); failure != nil {
		q.Verdict.Reset() // it may be that of an earlier request
		q.Hits = nil
		q.Decisions = nil
		q.Outcome = serve.NoDecision(h.site.OnError, fmt.Errorf("panic: %v", failure))
		serve.LogNoDecision(h.site, q)
		serve.Respond(q)
	}
}
