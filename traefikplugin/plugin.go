// Package traefikplugin is the Traefik middleware plugin pg_ratelimit: limits
// that all proxies on one Postgres database count together. Traefik interprets
// it with Yaegi.
//
// It only reads configuration and requests; ratelimit decides, and
// internal/edge turns decisions into answers, for the Caddy module alike.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// rule is a zone, ready to be used.
type rule struct {
	limit    *ratelimit.Limit
	key      template
	cost     int64    // 0: costText gives it
	costText template // nil if cost is fixed
	secret   bool
}

// New makes the middleware. It does not wait for the database. When ctx ends,
// as it does at the next reload, the middleware gives its pool back, but goes
// on to serve.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name, shared)
	if err != nil {
		return nil, fmt.Errorf("pg_ratelimit: %w", err)
	}
	if e := shared.entranceOf(h.pool, h.gate.Timeout); e != nil {
		return &entering{idle: e.idle, queue: e.queue, form: h.form, next: next, h: h}, nil
	}
	return h, nil
}

func newHandler(ctx context.Context, next http.Handler, config *Config, name string, r *registry) (*handler, error) {
	if config == nil {
		return nil, errors.New("no configuration")
	}
	rules, err := config.rules()
	if err != nil {
		return nil, err
	}
	addresses, err := newAddresses(config.IPStrategy)
	if err != nil {
		return nil, err
	}
	timeout, onError, err := config.gate()
	if err != nil {
		return nil, err
	}
	key, err := config.database()
	if err != nil {
		return nil, err
	}
	h := &handler{next: next, name: name, registry: r, form: newForm(rules, addresses)}
	// Last, so that no error leaves it acquired.
	if h.pool, err = r.acquire(key, timeout); err != nil {
		return nil, err
	}
	for _, rule := range rules {
		for _, doubt := range edge.Doubts(rule.limit, rule.cost) {
			h.pool.logger.note("middleware " + name + ", prefix " + rule.limit.Prefix + ": " + doubt)
		}
	}
	h.gate = &edge.Gate{Store: h.pool.store, Timeout: timeout, OnError: onError}
	pool := h.pool
	context.AfterFunc(ctx, func() {
		defer pool.logger.recovered()
		r.release(pool)
	})
	return h, nil
}

// handler is the middleware. It does not change after New.
type handler struct {
	next     http.Handler
	name     string
	registry *registry
	pool     *pool
	gate     *edge.Gate
	form     *form
}

// background is the context of all decisions, not the request's: a client that
// goes away must not spoil what it shares a statement with. The timeout bounds
// the wait.
var background = context.Background()

// ServeHTTP decides on a request at once. What next does, its panics included, is
// none of the plugin's business.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if pass(h, w, r) {
		h.next.ServeHTTP(w, r)
	}
}

// pass asks the store. It reports whether the request may go on; if not, it is
// answered.
func pass(h *handler, w http.ResponseWriter, r *http.Request) (ok bool) {
	defer contain(h, w, &ok)
	x := newExchange()
	x.form = h.form
	x.w = w
	x.r = r
	answer := askStore(x, h.gate)
	if answer.Err != nil {
		answer = failed(h, x, answer.Err)
	}
	return reply(w, answer)
}

// askStore has a request decided without the entrance.
func askStore(x *exchange, g *edge.Gate) edge.Answer {
	fill([]*ratelimit.Call{x.call})
	hits := x.call.Hits
	return edge.Ask(background, g, hits, make([]ratelimit.Decision, len(hits)))
}

// undecided answers a request on which no decision was made in the entrance, or
// reports that it may go on.
func undecided(h *handler, x *exchange, w http.ResponseWriter) (ok bool) {
	defer contain(h, w, &ok)
	return reply(w, failed(h, x, x.call.Err))
}

// failed is the answer where no decision was made, and logs it. A request that an
// old middleware got so late that its pool is closed asks the one that has taken
// the pool's place.
func failed(h *handler, x *exchange, err error) edge.Answer {
	answer := edge.Failed(h.gate, err)
	if errors.Is(err, ratelimit.ErrClosed) {
		pool, gone := h.registry.acquire(h.pool.key, h.gate.Timeout)
		if gone == nil {
			gate := edge.Gate{Store: pool.store, Timeout: h.gate.Timeout, OnError: h.gate.OnError}
			answer = askStore(x, &gate)
			h.registry.release(pool)
		}
	}
	if answer.Err != nil {
		h.pool.logger.failure(fmt.Errorf("middleware %s: %w", h.name, answer.Err))
	}
	return answer
}

// reply does what an answer says. It reports whether the request may go on.
func reply(w http.ResponseWriter, answer edge.Answer) bool {
	edge.SetHeaders(w.Header(), &answer)
	if answer.Status == 0 {
		return true
	}
	answer.Refuse(w)
	return false
}

// contain turns a panic of the plugin's own into a failed decision. It is to be
// deferred.
func contain(h *handler, w http.ResponseWriter, ok *bool) {
	if p := recover(); p != nil {
		panicked(h, w, ok, p)
	}
}

func panicked(h *handler, w http.ResponseWriter, ok *bool, p any) {
	h.pool.logger.failure(fmt.Errorf("middleware %s: panic: %v", h.name, p))
	*ok = h.gate.OnError != edge.Deny
	if !*ok {
		answer := edge.Answer{Status: http.StatusServiceUnavailable}
		answer.Refuse(w)
	}
}
