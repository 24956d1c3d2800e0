package traefikplugin

import (
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// handler is the middleware. It does not change after New.
type handler struct {
	upstream *upstream
	name     string
	process  *process
	use      *host.Handle
	site     *serve.Site
	forward  bool // the upstream is told what the policy says

	// plain are the limits of all requests. Nil if each request has to be asked about before the queue.
	plain *serve.LimitSet

	// Nil if the store decides at once.
	queue    *batch.Queue
	free     chan *serve.Request
	requests *requestQueue // has both
}

// ServeHTTP waits until a batch has decided the request. With a policy, it asks the policy first:
// the hits of the policy go with those of the configuration through the queue. Traefik interprets
// each step for each request, so there are few steps: fill and deliver do the work for all requests
// of a batch. The upstream is called outside of contain, because a panic of the upstream is not a
// panic of the plugin.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.queue == nil {
		q := newRequest()
		q.HTTP = r
		q.Writer = w
		decide(h, q)
		serveDecided(h, q, w, r)
		return
	}
	if len(h.free) < spare {
		grow(h.requests)
	}
	q := <-h.free
	q.HTTP = r
	q.Writer = w
	q.Admitted = false
	q.Body = ""
	q.Site = h.site
	q.Limits = h.plain
	if q.Limits != nil || begin(h, q) {
		batch.Enter(h.queue, q.Call)
		if !q.Admitted && q.Body == "" {
			undecided(h, q)
		}
	}
	if q.HTTP != nil || q.Asked || !q.Admitted || q.Flight != nil {
		serveDecided(h, q, w, r)
		return
	}
	h.free <- q
	pass(h.upstream, w, r)
}

// decide decides a request without a queue.
func decide(h *handler, q *serve.Request) {
	defer contain(h, q)
	if h.site.Policy != nil {
		removeForwarded(q.HTTP.Header)
	}
	_ = serve.Decide(h.site, q) // no matcher fails
	serve.Respond(h.site, q, q.Writer.Header())
}

// begin is what comes before the queue. It reports whether the queue decides the request. Otherwise the request is decided.
func begin(h *handler, q *serve.Request) (queued bool) {
	queued = false // after a panic, too
	defer contain(h, q)
	if h.site.Policy != nil {
		removeForwarded(q.HTTP.Header)
	}
	next, _ := serve.Begin(h.site, q) // no matcher fails
	if next == serve.Queued {
		return true
	}
	if next == serve.Taking {
		serve.Take(h.site, q)
	}
	serve.End(h.site, q)
	serve.Respond(h.site, q, q.Writer.Header())
	return false
}

// undecided is what follows if the queue has made no decision.
func undecided(h *handler, q *serve.Request) {
	defer contain(h, q)
	serve.Fail(h.site, q, q.Call.Err)
	serve.End(h.site, q)
	serve.Respond(h.site, q, q.Writer.Header())
}

// serveDecided serves a request that was decided. It is a function of its own because ServeHTTP would take longer for all
// requests.
func serveDecided(h *handler, q *serve.Request, w http.ResponseWriter, r *http.Request) {
	if q.Admitted && q.Asked && h.forward {
		forward(r.Header, q)
	}
	admitted := q.Admitted
	flight := q.Flight
	settling := q.Settling
	status := q.Outcome.Status
	body := q.Body
	release(q)
	if h.free != nil {
		h.free <- q
	}
	if !admitted {
		flight.End()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
		return
	}
	if flight != nil {
		passFlight(h.upstream, flight, settling, w, r)
		return
	}
	if settling != nil {
		passSettled(h.upstream, settling, w, r)
		return
	}
	pass(h.upstream, w, r)
}

// passFlight is pass for a request with a flight, which ends with the request: also after a panic of the
// upstream, as when it aborts the response. settling may be nil.
func passFlight(u *upstream, flight *serve.Flight, settling *serve.Settling, w http.ResponseWriter, r *http.Request) {
	defer flight.End()
	r = r.WithContext(flight.Context)
	if settling != nil {
		passSettled(u, settling, w, r)
		return
	}
	pass(u, w, r)
}

// contain must be deferred. It turns a panic of the plugin into an outcome without a decision.
func contain(h *handler, q *serve.Request) {
	if failure := recover(); failure != nil {
		panicked(h, q, failure)
	}
}

func panicked(h *handler, q *serve.Request, failure any) {
	q.Verdict.Reset() // it may be that of an earlier request
	q.Hits = nil
	q.Decisions = nil
	q.Outcome = serve.NoDecision(h.site.OnError, fmt.Errorf("panic: %v", failure))
	serve.LogNoDecision(h.site, q)
	serve.Respond(h.site, q, q.Writer.Header())
}
