// Package traefikplugin is the Traefik middleware plugin pg-ratelimit, which enforces limits that all proxies
// on one Postgres database count together.
//
// New compiles a Config to a setup, which all routers with the middleware share, and returns a handler. A
// process holds the setups across reloads, and the databases of all middlewares. A handler evaluates the
// policy and sends the request to its database's requestQueue. A queue worker fills and finishes all requests
// of a batch by the steps of package serve. A leasedZone decides requests without the queue if their key has
// a lease. A responseWriter keeps the headers of the limit in an upstream's responses. A template is a text
// with placeholders, and addresses determines {client_ip}.
//
// The package has no rules of its own for limits. Package ratelimit defines limits. Package serve defines the
// steps of a request in both proxies. No panic of the plugin may leave a goroutine, because it would end
// Traefik.
//
// Traefik interprets this package with Yaegi: see internal/testkit/imports/interpreted.go for the
// restrictions.
package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// New returns the middleware. It does not wait for the database. ctx ends at the next reload. The middleware
// then releases shared resources, and still serves requests that arrive later.
//
// An error has the name of the setting in Config, such as zones[0].limit, the setting's value (never a DSN),
// and the permitted values.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name, shared)
	if err != nil {
		return nil, fmt.Errorf("pg_ratelimit: %w", err)
	}
	if z := leasedZoneOf(h); z != nil {
		return z, nil
	}
	return h, nil
}

// newHandler returns the handler of a middleware in a process.
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
	h.upstream = &upstream{next: next, wraps: maxWraps}
	if h.site.Fields.IETF {
		h.upstream.wraps = -1 // pass does not check RateLimit and RateLimit-Policy
	}
	return &h, nil
}
