// Package traefikplugin is the Traefik middleware plugin pg_ratelimit, which enforces
// limits that all proxies on one Postgres database count together. Traefik interprets it
// with Yaegi: see package batch for what that means for the code.
//
//   - config.go is the configuration, spelling.go reads its values in both spellings, settings.go checks it, with template.go and
//     placeholder.go for keys and costs, and address.go for {client_ip}.
//   - plugin.go makes the middleware. pool.go shares the stores, the policies and the histories
//     between middlewares.
//   - handler.go serves a request as package edge says. queued.go and history_serve.go do what edge does, in one loop for
//     all requests of a batch. leased.go serves a request if the process holds a lease.
//   - policy.go reads the policy, and forward.go tells the upstream what it says. history.go reads what is recorded.
//   - response.go changes the headers of a response, and watches it for what the request cost.
//
// What a limit means is in package ratelimit. What both proxies do with a request is in
// package edge.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
		inform("rate limits are enforced by " + program)
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
	made, err := config.compile()
	if err != nil {
		return nil, err
	}
	site := made.site
	settings, err := made.store()
	if err != nil {
		return nil, err
	}
	h := &handler{upstream: newUpstream(next, made.headers, site.Fields), name: name, registry: r, site: site, forward: made.forward}
	if site.Policy != nil {
		h.policy.settings = site.Policy.Settings
		if h.policy.database, err = made.policyStore(settings); err != nil {
			return nil, err
		}
	}
	recorded, err := made.recording(settings)
	if err != nil {
		return nil, err
	}
	if h.pool, err = r.acquire(settings, site.Decider.Timeout); err != nil {
		return nil, err
	}
	h.uses = append(h.uses, h.pool.use)
	if err := h.acquire(recorded); err != nil {
		h.release()
		return nil, err
	}
	if made.hasPassword() {
		r.warnOfPassword(h.pool)
	}
	for _, z := range site.Zones {
		r.share(h.pool, z)
	}
	site.Warnings(func(z *edge.Zone, w edge.Warning) {
		h.pool.logger.log("middleware " + name + ", prefix " + z.Limit.Prefix + ": " + camelCase(w.Field) + " " + w.Text)
	})
	site.Fields.Salt = h.pool.salt
	site.Decider.UseStore(h.pool.store)
	h.report()
	end := site.Prepare()
	h.plain = site.All()
	if q := r.queueOf(h.pool, site.Decider.Timeout); q != nil {
		h.queue = q.queue
		h.free = q.free
	}
	forget := edge.Show(site)
	r.say(h.name, h.understood(made.policy))
	context.AfterFunc(ctx, func() {
		defer h.pool.logger.recovered()
		forget()
		h.release()
		time.AfterFunc(r.delay, func() { // the next middlewares have opened their lines of waiting requests then
			defer h.pool.logger.recovered()
			end()
		})
	})
	return h, nil
}

// hasPassword reports whether a DSN in the configuration holds a password.
func (c *compiled) hasPassword() bool {
	return edge.HasPassword(c.own["dsn"]) || edge.HasPassword(c.policy["dsn"]) || edge.HasPassword(c.history["dsn"])
}

// acquire acquires what a handler shares: the policy and the history, if it has any.
func (h *handler) acquire(recorded *recordSettings) error {
	if h.site.Policy != nil {
		used, err := h.registry.acquirePolicy(h.pool, h.policy)
		if err != nil {
			return err
		}
		h.uses = append(h.uses, used)
		h.site.Policy.Live = used.policy
	}
	if recorded != nil {
		used, err := h.registry.acquireHistory(recorded)
		if err != nil {
			return err
		}
		h.uses = append(h.uses, used)
		h.site.History = used.writer
		h.site.Hide()
	}
	return nil
}

// release releases what a handler shares. The history and the policy are released before their pool.
func (h *handler) release() {
	for i := len(h.uses) - 1; i >= 0; i-- {
		h.registry.release(h.pool, h.uses[i])
	}
}
