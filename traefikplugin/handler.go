package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// handler is the middleware on a store that decides each request at once. It does not
// change after New.
type handler struct {
	upstream *upstream
	name     string
	registry *registry
	pool     *pool
	decider  *edge.Decider
	hits     *hitTemplate

	policy         *edge.Policy // nil without
	policyTemplate *policyTemplate
}

// background is the context of all decisions. The context of a request is not used. It would
// end the wait when the client closes its connection, and the error would be logged as a
// failure of the database. The timeout bounds the wait.
var background = context.Background()

// ServeHTTP calls the upstream outside of contain, because a panic of the upstream is not a
// panic of the plugin.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if decide(h, w, r) {
		pass(h.upstream, w, r)
	}
}

// decide reports whether a request passes. If the request does not pass, decide has sent the
// response.
func decide(h *handler, w http.ResponseWriter, r *http.Request) (passes bool) {
	defer contain(h, w, &passes)
	p := newPendingRequest()
	p.hits = h.hits
	p.w = w
	p.r = r
	outcome := askStore(p, h.decider)
	if outcome.Err != nil {
		outcome = noDecision(h, p, outcome.Err)
	}
	return respond(w, outcome)
}

// askStore decides a request without a queue.
func askStore(p *pendingRequest, d *edge.Decider) edge.Outcome {
	fill([]*batch.Call{p.call})
	hits := p.call.Hits
	p.call.Decisions = append(p.call.Decisions[:0], make([]ratelimit.Decision, len(hits))...)
	if p.asked {
		return edge.DecidePolicy(background, d, hits, p.call.Decisions, &p.outcome)
	}
	return edge.Decide(background, d, hits, p.call.Decisions)
}

// respondWithoutDecision is decide for a request for which the queue has made no decision.
func respondWithoutDecision(h *handler, p *pendingRequest, w http.ResponseWriter) (passes bool) {
	defer contain(h, w, &passes)
	outcome := noDecision(h, p, p.call.Err)
	recordAlone(p, outcome, nil)
	return respond(w, outcome)
}

// noDecision returns the outcome of a request for which no decision was made, and logs the
// reason. If the pool is closed, because the request came long after a reload, noDecision
// asks the pool that has replaced it.
func noDecision(h *handler, p *pendingRequest, err error) edge.Outcome {
	if errors.Is(err, batch.ErrPaused) {
		return edge.PausedOutcome()
	}
	outcome := edge.NoDecision(h.decider.OnError, err)
	if errors.Is(err, ratelimit.ErrClosed) {
		pool, failure := h.registry.acquire(h.pool.settings, h.decider.Timeout)
		if failure == nil {
			d := edge.Decider{Store: pool.store, Timeout: h.decider.Timeout, OnError: h.decider.OnError}
			outcome = askStore(p, &d)
			h.registry.release(pool)
		}
	}
	if outcome.Err != nil {
		h.pool.logger.failure(fmt.Errorf("middleware %s: %s: %w", h.name, outcome.Consequence(), outcome.Err))
	}
	return outcome
}

// respond sets the headers, and refuses a request that does not pass. It reports whether
// the request passes.
func respond(w http.ResponseWriter, outcome edge.Outcome) bool {
	edge.SetHeaders(w.Header(), &outcome)
	if outcome.Status == 0 {
		return true
	}
	outcome.Refuse(w)
	return false
}

// contain must be deferred. It turns a panic of the plugin into an outcome without a decision.
func contain(h *handler, w http.ResponseWriter, passes *bool) {
	if p := recover(); p != nil {
		panicked(h, w, passes, p)
	}
}

func panicked(h *handler, w http.ResponseWriter, passes *bool, p any) {
	outcome := edge.NoDecision(h.decider.OnError, fmt.Errorf("panic: %v", p))
	h.pool.logger.failure(fmt.Errorf("middleware %s: %s: %w", h.name, outcome.Consequence(), outcome.Err))
	*passes = respond(w, outcome)
}
