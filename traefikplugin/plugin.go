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
	h := &handler{next: next, name: name, registry: r}
	if h.addresses, err = newAddresses(config.IPStrategy); err != nil {
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
	for _, rule := range rules {
		if h.addresses.plain {
			rule.key.directly()
			rule.costText.directly()
		}
		h.hits = append(h.hits, ratelimit.Hit{Limit: rule.limit, Cost: rule.cost, Secret: rule.secret})
		h.keys = append(h.keys, rule.key)
		h.costs = append(h.costs, rule.costText)
		h.costly = h.costly || rule.costText != nil
	}
	// Last, so that no error leaves it acquired.
	if h.pool, err = r.acquire(key, timeout); err != nil {
		return nil, err
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
//
// What follows runs interpreted for every request, so it is written for few
// operations: a call of a function costs about 0.5 µs and that of a method 2,
// and each variable and intermediate value in a function adds to every call of
// it, also where its branch is not taken. Hence functions rather than methods,
// and what is rare in functions of its own.
type handler struct {
	next      http.Handler
	name      string
	registry  *registry
	pool      *pool
	gate      *edge.Gate
	addresses *addresses

	// By rule: the hit without its key, and the key and cost to be filled in.
	hits   []ratelimit.Hit
	keys   []template
	costs  []template // nil where the cost is fixed
	costly bool       // a cost has to be filled in
}

// background is the context of all decisions, not the request's: a client that
// goes away must not spoil what it shares a statement with. The timeout bounds
// the wait.
var background = context.Background()

// ServeHTTP decides on a request. What next does, its panics included, is none
// of the plugin's business.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if pass(h, w, r) {
		h.next.ServeHTTP(w, r)
	}
}

// pass asks for a decision and writes the headers. It reports whether the
// request may go on; if not, it is answered.
func pass(h *handler, w http.ResponseWriter, r *http.Request) (ok bool) {
	defer contain(h, w, &ok)
	hits := append([]ratelimit.Hit(nil), h.hits...)
	for i := range hits {
		hits[i].Key = expand(h.keys[i], r, h.addresses)
	}
	if h.costly {
		fillCosts(h, r, hits)
	}
	answer := edge.Ask(background, h.gate, hits, make([]ratelimit.Decision, len(hits)))
	if answer.Err != nil {
		answer = failed(h, answer, hits)
	}
	edge.SetHeaders(w.Header(), &answer)
	if answer.Status == 0 {
		return true
	}
	answer.Refuse(w)
	return false
}

// fillCosts puts in the costs that requests give.
func fillCosts(h *handler, r *http.Request, hits []ratelimit.Hit) {
	for i := range hits {
		if h.costs[i] != nil {
			hits[i].Cost = edge.RequestCost(expand(h.costs[i], r, h.addresses))
		}
	}
}

// failed logs that no decision was made. A request that an old middleware got so
// late that its pool is closed asks the one that has taken the pool's place.
func failed(h *handler, answer edge.Answer, hits []ratelimit.Hit) edge.Answer {
	if errors.Is(answer.Err, ratelimit.ErrClosed) {
		pool, err := h.registry.acquire(h.pool.key, h.gate.Timeout)
		if err == nil {
			gate := edge.Gate{Store: pool.store, Timeout: h.gate.Timeout, OnError: h.gate.OnError}
			answer = edge.Ask(background, &gate, hits, make([]ratelimit.Decision, len(hits)))
			h.registry.release(pool)
		}
	}
	if answer.Err != nil {
		h.pool.logger.failure(fmt.Errorf("middleware %s: %w", h.name, answer.Err))
	}
	return answer
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
