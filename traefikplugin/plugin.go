// Package traefikplugin is the Traefik middleware plugin pg_ratelimit, which enforces
// limits that all proxies on one Postgres database count together. Traefik interprets it
// with Yaegi: see package batch for what that means for the code.
//
//   - config.go is the configuration, settings.go reads it, with template.go and
//     placeholder.go for keys and costs, and address.go for {client_ip}.
//   - plugin.go makes the middleware. pool.go shares the stores, the policies and the histories
//     between middlewares.
//   - handler.go serves a request. first.go is what comes before the queue. queued.go is what the queue does for all requests of a batch.
//     leased.go serves a request if the process holds a lease.
//   - policy.go reads the policy. policy_serve.go asks it about a request, and forward.go tells the
//     upstream what it says.
//   - history.go reads what is recorded. history_serve.go records a request.
//   - response.go changes the headers of a response.
//
// What a limit means is in package ratelimit. What both proxies do with a request is in
// package edge.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// New returns the middleware. It does not wait for the database. ctx ends at the next reload.
// The middleware then releases its pool. It still serves requests that arrive later.
//
// An error names the setting as Config has it, such as zones[0].limit, what it holds (never a DSN),
// and what it must be.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name, shared)
	if err != nil {
		return nil, fmt.Errorf("pg_ratelimit: %w", err)
	}
	if atomic.CompareAndSwapInt32(&started, 0, 1) {
		h.pool.logger.log("rate limits are enforced by " + program)
	}
	return withLeases(h), nil
}

// started is 1 once the log has the version; atomic.
var started int32

// newHandler returns a handler on a pool of the registry.
func newHandler(ctx context.Context, next http.Handler, config *Config, name string, r *registry) (*handler, error) {
	if config == nil {
		return nil, errors.New("no configuration")
	}
	addresses, err := newAddresses(config.IPStrategy)
	if err != nil {
		return nil, err
	}
	zones, err := config.compile()
	if err != nil {
		return nil, err
	}
	var read edge.Settings
	if err := edge.Read(edge.HandlerTable, reflect.ValueOf(config), &read); err != nil {
		return nil, named("", err)
	}
	exempt, err := read.Exempt.Compile(secretText)
	if err != nil {
		return nil, named("", err)
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
	h := &handler{upstream: newUpstream(next, read.Headers, read.Fields), name: name, registry: r, hits: newHitTemplate(zones, addresses, read.Fields)}
	if h.pool, err = r.acquire(settings, read.Timeout); err != nil {
		return nil, err
	}
	h.uses = append(h.uses, h.pool.use)
	if err := h.acquire(p, recorded, zones); err != nil {
		h.release()
		return nil, err
	}
	r.shareLimits(h.pool, h.hits.hits)
	for _, limits := range h.hits.byValue {
		for value, limit := range limits {
			one := []ratelimit.Hit{{Limit: limit}}
			r.shareLimits(h.pool, one)
			limits[value] = one[0].Limit
		}
	}
	if edge.HasPassword(config.DSN) {
		r.warnOfPassword(h.pool)
	}
	h.hits.warnings = &emptyKeys{logger: h.pool.logger, name: name, logged: map[string]bool{}}
	for _, z := range zones {
		for _, warning := range edge.Warnings(z.limit, z.cost) {
			h.pool.logger.log("middleware " + name + ", prefix " + z.limit.Prefix + ": " + camelCase(warning.Field) + " " + warning.Text)
		}
	}
	h.plain = p == nil && len(h.hits.hits) > 0 && exempt == nil
	h.exempt = exempt
	h.none = newHitTemplate(nil, addresses, read.Fields)
	h.none.recorder = h.hits.recorder
	h.decider = &edge.Decider{Store: h.pool.store, Timeout: read.Timeout, OnError: read.OnError}
	if q := r.queueOf(h.pool, read.Timeout); q != nil {
		h.queue = q.queue
		h.free = q.free
	}
	h.forget = show(h, config, zones, read.Timeout)
	context.AfterFunc(ctx, func() {
		defer h.pool.logger.recovered()
		h.forget()
		h.release()
	})
	return h, nil
}

// show has pages show a handler.
func show(h *handler, config *Config, zones []*zone, timeout time.Duration) (forget func()) {
	shown := &edge.Shown{OnError: h.decider.OnError, Timeout: timeout, Policy: h.policy != nil}
	for i, c := range config.zones() {
		z := zones[i]
		key := c.zone.Key
		if key == "" {
			key = defaultKey
		}
		shown.Limits = append(shown.Limits, edge.ShownLimit{Limit: z.limit, Key: key, Mode: z.mode, Varies: z.byValue != nil})
	}
	return edge.Show(h.pool.store, shown)
}

// acquire acquires what a handler shares on its pool: the policy and the history, if it has any.
func (h *handler) acquire(p *compiledPolicy, recorded *recordSettings, zones []*zone) error {
	if p != nil {
		used, err := h.registry.acquirePolicy(h.pool, p.settings)
		if err != nil {
			return err
		}
		h.uses = append(h.uses, used)
		h.policy = used.policy
		h.live = used.policy.Live()
		h.template = p
	}
	if recorded != nil {
		used, err := h.registry.acquireHistory(h.pool, recorded.settings)
		if err != nil {
			return err
		}
		h.uses = append(h.uses, used)
		h.hits.recorder = newRecorder(used.writer, recorded.audit, h.hits.addresses, p, zones)
		h.hits.recorder.registry = h.registry
	}
	return nil
}

// release releases what a handler shares. The history and the policy are released before their pool.
func (h *handler) release() {
	for i := len(h.uses) - 1; i >= 0; i-- {
		h.registry.release(h.pool, h.uses[i])
	}
}
