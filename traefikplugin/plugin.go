// Package traefikplugin is the Traefik middleware plugin pg_ratelimit, which enforces
// limits that all proxies on one Postgres database count together. Traefik interprets it
// with Yaegi: see package batch for what that means for the code.
//
//   - config.go is the configuration, settings.go reads it, with template.go and
//     placeholder.go for keys and costs, and address.go for {client_ip}.
//   - plugin.go makes the middleware. pool.go shares the stores between middlewares.
//   - policy.go reads the policy, and policy_pool.go shares it. policy_handler.go serves a
//     request with it.
//   - history.go reads what is recorded, and history_pool.go shares the history.
//     history_serve.go records a request.
//   - handler.go serves a request if the store decides at once, queued.go if it decides
//     in batches, leased.go if the process holds a lease. response.go changes the headers of
//     a response.
//
// What a limit means is in package ratelimit. What both proxies do with a request is in
// package edge.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// New returns the middleware. It does not wait for the database. ctx ends at the next reload.
// The middleware then releases its pool. It still serves requests that arrive later.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name, shared)
	if err != nil {
		return nil, fmt.Errorf("pg_ratelimit: %w", err)
	}
	return withQueue(h), nil
}

// newHandler returns a handler on a pool of the registry.
func newHandler(ctx context.Context, next http.Handler, config *Config, name string, r *registry) (*handler, error) {
	if config == nil {
		return nil, errors.New("no configuration")
	}
	addresses, err := newAddresses(config.IPStrategy)
	if err != nil {
		return nil, err
	}
	rules, err := config.rules()
	if err != nil {
		return nil, err
	}
	timeout, onError, err := config.deciding()
	if err != nil {
		return nil, err
	}
	headers, err := edge.ParseHeaderPolicy(config.Headers, edge.OurHeaders)
	if err != nil {
		return nil, err
	}
	settings, err := config.store()
	if err != nil {
		return nil, err
	}
	p, err := config.policy(addresses)
	if err != nil {
		return nil, err
	}
	if p != nil && settings.DSN == edge.MemoryDSN {
		return nil, edge.PolicyNeedsPostgres()
	}
	recorded, err := config.recording(settings.DSN == edge.MemoryDSN)
	if err != nil {
		return nil, err
	}
	h := &handler{upstream: newUpstream(next, headers), name: name, registry: r, hits: newHitTemplate(rules, addresses)}
	// This is the last step that can fail, so that no error leaves the pool acquired.
	if h.pool, err = r.acquire(settings, timeout); err != nil {
		return nil, err
	}
	if p != nil {
		if h.policy, err = r.acquirePolicy(h.pool, p.settings); err != nil {
			r.release(h.pool)
			return nil, err
		}
		h.policyTemplate = p
	}
	if recorded != nil {
		writer, err := r.acquireHistory(h.pool, recorded.settings)
		if err != nil {
			if p != nil {
				r.releasePolicy(h.pool, p.settings)
			}
			r.release(h.pool)
			return nil, err
		}
		h.hits.recorder = newRecorder(writer, recorded.audit, addresses, p, rules)
		h.hits.recorder.registry = r
	}
	r.shareLimits(h.pool, h.hits.hits)
	if edge.HasPassword(config.DSN) {
		r.warnOfPassword(h.pool)
	}
	h.hits.warnings = &emptyKeys{logger: h.pool.logger, name: name, logged: map[string]bool{}}
	for _, rule := range rules {
		for _, warning := range edge.Warnings(rule.limit, rule.cost) {
			h.pool.logger.log("middleware " + name + ", prefix " + rule.limit.Prefix + ": " + camelCase(warning.Field) + " " + warning.Text)
		}
	}
	h.decider = &edge.Decider{Store: h.pool.store, Timeout: timeout, OnError: onError}
	pool := h.pool
	context.AfterFunc(ctx, func() {
		defer pool.logger.recovered()
		if recorded != nil {
			r.releaseHistory(pool, recorded.settings)
		}
		if p != nil {
			r.releasePolicy(pool, p.settings)
		}
		r.release(pool)
	})
	return h, nil
}

// withQueue returns the handler that serves requests: h itself if its store decides at once,
// else a handler that puts each request into a queue.
func withQueue(h *handler) http.Handler {
	q := h.registry.queueOf(h.pool, h.decider.Timeout)
	if q == nil {
		return h
	}
	if h.policy != nil {
		return &policyHandler{
			free: q.free, queue: q.queue, hits: h.hits, upstream: h.upstream, direct: h, policy: h.policy, live: h.policy.Live(), template: h.policyTemplate,
			timeout: h.decider.Timeout, patience: h.decider.Timeout / 10,
		}
	}
	return withLeases(h, &queuedHandler{free: q.free, queue: q.queue, hits: h.hits, upstream: h.upstream, direct: h})
}
