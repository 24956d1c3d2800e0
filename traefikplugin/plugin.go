// Package traefikplugin is the Traefik middleware plugin pg_ratelimit, which enforces
// limits that all proxies on one Postgres database count together. Traefik interprets it
// with Yaegi: see package batch for what that means for the code.
//
//   - config.go is the configuration, settings.go reads it, with template.go and
//     placeholder.go for keys and costs, address.go for {client_ip}, and match.go for limits that are not for all requests.
//   - plugin.go makes the middleware. pool.go shares the stores, the policies and the histories
//     between middlewares.
//   - handler.go serves a request. first.go is what comes before the queue. queued.go is what the queue does for all requests of a batch.
//     leased.go serves a request if the process holds a lease.
//   - policy.go reads the policy. policy_serve.go asks it about a request, and forward.go tells the
//     upstream what it says.
//   - history.go reads what is recorded. history_serve.go records a request.
//   - response.go changes the headers of a response. settle.go watches it for what the request cost.
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
	p, err := config.policy(addresses, settings)
	if err != nil {
		return nil, err
	}
	recorded, err := config.recording(settings)
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
	r.share(h.pool, h.hits)
	if config.hasPassword() {
		r.warnOfPassword(h.pool)
	}
	h.hits.warnings = &emptyKeys{logger: h.pool.logger, name: name, logged: map[string]bool{}}
	for _, z := range zones {
		for _, warning := range edge.Warnings(z.limit, z.cost) {
			h.pool.logger.log("middleware " + name + ", prefix " + z.limit.Prefix + ": " + camelCase(warning.Field) + " " + warning.Text)
		}
	}
	h.exempt = exempt
	template := func(zones []*zone) *hitTemplate {
		t := newHitTemplate(zones, addresses, read.Fields)
		r.share(h.pool, t)
		t.recorder = h.hits.recorder
		t.warnings = h.hits.warnings
		t.store = h.pool.store
		t.logger = h.pool.logger
		return t
	}
	h.hits.store = h.pool.store
	h.hits.logger = h.pool.logger
	h.none = template(nil)
	h.selection = newSelection(zones, template)
	h.chooses = exempt != nil || h.selection != nil
	h.plain = p == nil && len(h.hits.hits) > 0 && !h.chooses && !h.hits.flies
	h.decider = &edge.Decider{Timeout: read.Timeout, OnError: read.OnError, Share: read.LocalShare}
	h.decider.UseStore(h.pool.store)
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

// hasPassword reports whether a DSN in the configuration holds a password.
func (c *Config) hasPassword() bool {
	return edge.HasPassword(c.DSN) || len(c.Policy) > 0 && edge.HasPassword(c.Policy[0].DSN) || len(c.History) > 0 && edge.HasPassword(c.History[0].DSN)
}

// show has pages show a handler.
func show(h *handler, config *Config, zones []*zone, timeout time.Duration) (forget func()) {
	shown := &edge.Shown{OnError: h.decider.OnError, Timeout: timeout, Policy: h.policy != nil}
	if h.hits.recorder != nil {
		shown.History = h.hits.recorder.writer
	}
	for i, c := range config.zones() {
		z := zones[i]
		key := c.zone.Key
		if key == "" {
			key = defaultKey
		}
		shown.Limits = append(shown.Limits, edge.ShownLimit{Limit: z.limit, Key: key, Mode: z.mode, Varies: z.byValue != nil, Settle: z.settle, Wait: z.wait})
	}
	return edge.Show(h.pool.store, shown)
}

// acquire acquires what a handler shares: the policy and the history, if it has any.
func (h *handler) acquire(p *compiledPolicy, recorded *recordSettings, zones []*zone) error {
	if p != nil {
		used, err := h.registry.acquirePolicy(h.pool, p)
		if err != nil {
			return err
		}
		h.uses = append(h.uses, used)
		h.policy = used.policy
		h.live = used.policy.Live()
		h.template = p
	}
	if recorded != nil {
		used, err := h.registry.acquireHistory(recorded)
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
