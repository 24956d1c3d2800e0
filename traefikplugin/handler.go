package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// handler is the middleware. It does not change after New.
type handler struct {
	upstream *upstream
	name     string
	registry *registry
	pool     *pool
	uses     []*sharing // of the pool, and of the policy and the history on it
	forget   func()     // has pages show it no more
	decider  *edge.Decider
	hits     *hitTemplate
	plain    bool // all requests have hits that hold nothing, and there is no policy: nothing is asked before the queue

	// Nil if no request is exempt. none has no hits: it is the template of requests that are.
	exempt *edge.Exempt
	none   *hitTemplate

	selection *selection // nil if all limits are for all requests
	chooses   bool       // exempt or selection is not nil

	// Nil if the store decides at once.
	queue *batch.Queue
	free  chan *pendingRequest

	// Nil without a policy.
	policy   *edge.ProxyPolicy
	live     *policy.Policy // of policy
	template *compiledPolicy
}

// background is the context of all decisions. The context of a request is not used. It would
// end the wait when the client closes its connection, and the error would be logged as a
// failure of the database. The timeout bounds the wait.
var background = context.Background()

// ServeHTTP waits until a batch has decided the request. With a policy, it asks the policy first:
// the hits of the policy go with those of the configuration through the queue. Traefik interprets
// each step for each request, so there are few steps: fill and deliver do the work for all requests
// of a batch. The upstream is called outside of contain, because a panic of the upstream is not a
// panic of the plugin.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.queue == nil {
		serveAtOnce(h, w, r)
		return
	}
	p := <-h.free
	p.hits = h.hits
	p.w = w
	p.r = r
	p.admitted = false
	p.body = ""
	queued := h.plain
	if h.policy != nil {
		queued = askPolicy(h, p)
	} else if !queued {
		queued = askFirst(h, p)
	}
	if queued {
		batch.Enter(h.queue, p.call)
	}
	if p.asked || !p.admitted || p.settling != nil || p.flight != nil {
		serveOther(h, p, w, r, queued)
		return
	}
	h.free <- p
	pass(h.upstream, w, r)
}

// serveAtOnce is ServeHTTP without a queue.
func serveAtOnce(h *handler, w http.ResponseWriter, r *http.Request) {
	p := newPendingRequest()
	p.hits = h.hits
	p.w = w
	p.r = r
	p.began = time.Now()
	admitAtOnce(h, p)
	flight := p.flight
	switch {
	case !p.admitted:
		flight.End()
	case flight != nil:
		passFlight(h.upstream, flight, p.settling, w, r)
	case p.settling != nil:
		passSettled(h.upstream, p.settling, w, r)
	default:
		pass(h.upstream, w, r)
	}
}

// passFlight is pass for a request with a flight, which ends with the request: also after a panic of the
// upstream, as when it aborts the response. settling may be nil.
func passFlight(u *upstream, flight *edge.Flight, settling *edge.Settling, w http.ResponseWriter, r *http.Request) {
	defer flight.End()
	r = r.WithContext(flight.Context)
	if settling != nil {
		passSettled(u, settling, w, r)
		return
	}
	pass(u, w, r)
}

func admitAtOnce(h *handler, p *pendingRequest) {
	defer contain(h, p)
	chooseHits(h, p)
	decideLate(h, p, nil)
}

// serveOther is the rest of ServeHTTP with a policy, or for a request that deliver has not admitted. It is
// a function of its own because ServeHTTP would take longer for all requests.
func serveOther(h *handler, p *pendingRequest, w http.ResponseWriter, r *http.Request, queued bool) {
	if queued && !p.admitted {
		if p.body == "" {
			withoutDecision(h, p)
		} else if p.asked {
			countRefusal(h, p, p.call.Decisions)
		}
	}
	if p.asked {
		if p.admitted && h.template.forward {
			forward(r.Header, &p.verdict)
		}
		p.asked = false
		p.facts = policy.Facts{} // a part of a long request must not be kept
		p.verdict.User = ""
		p.verdict.Tier = ""
		for i := range p.verdict.Hits {
			p.verdict.Hits[i].Key = ""
			p.verdict.Hits[i].Subject = ""
		}
	}
	if p.r != nil {
		forget(p)
	}
	flight, settling := p.flight, p.settling
	p.flight = nil // Yaegi cannot assign two nils at once
	p.settling = nil
	if p.admitted {
		h.free <- p
		if flight != nil {
			passFlight(h.upstream, flight, settling, w, r)
			return
		}
		if settling != nil {
			passSettled(h.upstream, settling, w, r)
			return
		}
		pass(h.upstream, w, r)
		return
	}
	flight.End()
	body := p.body
	status := p.status
	h.free <- p
	if body != "" {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
	}
}

// askStore decides a request without a queue.
func askStore(p *pendingRequest, d *edge.Decider) edge.Outcome {
	fill([]*batch.Call{p.call})
	hits := p.call.Hits
	p.call.Decisions = append(p.call.Decisions[:0], make([]ratelimit.Decision, len(hits))...)
	if p.flight != nil {
		return d.TakeInTurn(p.flight.Context, p.hits.waits, hits, p.call.Decisions, verdictOf(p))
	}
	return d.Take(background, hits, p.call.Decisions, verdictOf(p))
}

// verdictOf is what the policy says of a request, or nil without a policy.
func verdictOf(p *pendingRequest) *policy.Verdict {
	if p.asked {
		return &p.verdict
	}
	return nil
}

// decideLate decides a request without the queue, in what is left of its timeout. failure is why the
// policy could not decide the request, or nil: what it would have said of a request that passes is
// unknown.
func decideLate(h *handler, p *pendingRequest, failure error) {
	if p.flight == nil && (p.hits.flies || p.asked && edge.HasSlots(p.verdict.Hits)) {
		p.flight = edge.NewFlight(p.r.Context())
	}
	d := *h.decider
	d.Timeout -= time.Since(p.began)
	if d.Timeout < time.Millisecond {
		d.Timeout = time.Millisecond // refusals that are known need no more
	}
	outcome := askStore(p, &d)
	if outcome.Err != nil {
		outcome = noDecision(h, p, outcome.Err)
	} else if outcome.Status != 0 && p.asked {
		countRefusal(h, p, p.call.Decisions)
	}
	if failure != nil && outcome.Status == 0 {
		outcome.Err = failure
	}
	answer(p, &outcome, p.call.Hits, p.call.Decisions)
}

// withoutDecision answers a request for which the queue has made no decision.
func withoutDecision(h *handler, p *pendingRequest) {
	defer contain(h, p)
	fill([]*batch.Call{p.call}) // its hits may be those of an earlier request
	outcome := noDecision(h, p, p.call.Err)
	if outcome.Decision != nil && outcome.Status != 0 && p.asked {
		countRefusal(h, p, p.call.Decisions)
	}
	answer(p, &outcome, p.call.Hits, p.call.Decisions)
}

// noDecision returns the outcome of a request for which no decision was made, and logs the
// reason. If the pool is closed, because the request came long after a reload, noDecision
// asks the pool that has replaced it.
func noDecision(h *handler, p *pendingRequest, err error) edge.Outcome {
	p.call.Decisions = append(p.call.Decisions[:0], make([]ratelimit.Decision, len(p.call.Hits))...) // they may be those of an earlier request
	if errors.Is(err, batch.ErrPaused) {
		return edge.PausedOutcome()
	}
	outcome := h.decider.TakeLocal(p.call.Hits, p.call.Decisions, verdictOf(p), err)
	if errors.Is(err, ratelimit.ErrClosed) {
		pool, failure := h.registry.acquire(h.pool.settings, h.decider.Timeout)
		if failure == nil {
			d := *h.decider
			d.UseStore(pool.store)
			outcome = askStore(p, &d)
			h.registry.release(pool, pool.use)
		}
	}
	if outcome.Err != nil {
		h.pool.logger.failure(fmt.Errorf("middleware %s: %s: %w", h.name, outcome.Consequence(), outcome.Err))
	}
	return outcome
}

// answer records and responds to a request that no batch has decided: it sets the headers, and refuses a
// request that does not pass.
func answer(p *pendingRequest, o *edge.Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	if p.hits.recorder != nil {
		record(p, o, hits, decisions)
	}
	respond(p, o, hits, decisions)
}

func respond(p *pendingRequest, o *edge.Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	edge.SetFields(p.w.Header(), p.hits.fields, o, hits, decisions)
	p.admitted = o.Status == 0
	if p.admitted && len(decisions) == len(hits) && (p.hits.settled || p.asked && !p.verdict.Simple) {
		settle(p, hits, decisions, false)
	}
	if !p.admitted {
		refusal := edge.Refusal{Request: p.r.Header, Hits: hits, Decisions: decisions}
		if p.asked {
			refusal.Policy = &p.verdict
		}
		o.Refuse(p.w, &refusal)
	}
}

// contain must be deferred. It turns a panic of the plugin into an outcome without a decision.
func contain(h *handler, p *pendingRequest) {
	if failure := recover(); failure != nil {
		panicked(h, p, failure)
	}
}

func panicked(h *handler, p *pendingRequest, failure any) {
	p.verdict.Reset() // it may be that of an earlier request
	outcome := edge.NoDecision(h.decider.OnError, fmt.Errorf("panic: %v", failure))
	h.pool.logger.failure(fmt.Errorf("middleware %s: %s: %w", h.name, outcome.Consequence(), outcome.Err))
	respond(p, &outcome, nil, nil)
}
