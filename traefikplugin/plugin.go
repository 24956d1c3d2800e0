// Package traefikplugin is the Traefik middleware plugin pg-ratelimit, which enforces limits that all proxies
// on one Postgres database count together. Traefik interprets it with Yaegi: see
// internal/testkit/imports/interpreted.go for the restrictions.
//
//   - config.go is the configuration, spelling.go reads its values in both spellings, settings.go checks it,
//     with template.go and placeholder.go for keys and costs, and address.go for {client_ip}.
//   - plugin.go makes the middleware. setup.go and process.go have what middlewares share.
//   - handler.go serves a request by the steps of package serve. queued.go has the queues. Their workers fill
//     and deliver all requests of a batch. leased.go serves a request if the process holds a lease.
//   - forward.go sets headers for the upstream. shutdown.go writes the history when Traefik ends.
//   - response.go changes the headers of a response, and watches it for what the request cost.
//
// What a limit means is in package ratelimit. What both proxies do with a request is in package serve.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// New returns the middleware. It does not wait for the database. ctx ends at the next reload.
// The middleware then releases what it shares. It still serves requests that arrive later.
//
// An error names the setting as Config has it, such as zones[0].limit, what it holds (never a DSN),
// and what it must be.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name, shared)
	if err != nil {
		return nil, fmt.Errorf("pg_ratelimit: %w", err)
	}
	if atomic.CompareAndSwapInt32(&started, 0, 1) {
		write("", host.Line{Text: "rate limits are enforced by " + program})
	}
	return withLeases(h), nil
}

// started is 1 once the log has the version; atomic.
var started int32

// newHandler returns a handler of a process.
func newHandler(ctx context.Context, next http.Handler, config *Config, name string, p *process) (*handler,
	error) {
	if config == nil {
		return nil, errors.New("no configuration")
	}
	s, err := p.setup(ctx, config, name)
	if err != nil {
		return nil, err
	}
	h := *s.handler
	h.upstream = newUpstream(next, h.site.Fields)
	return &h, nil
}
