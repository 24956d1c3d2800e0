// Package httplimit enforces limits in front of a net/http handler, with the headers and
// refusals of the Caddy module and the Traefik plugin.
package httplimit

import (
	"io"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a middleware. Limit or Hits is required.
type Options struct {
	// Limit charges 1 for each request to the address of the connection, the host of
	// http.Request.RemoteAddr, or to the /64 of an IPv6 address. Behind a proxy, that is the address of the
	// proxy: set Hits instead, which replaces Limit.
	Limit *ratelimit.Limit
	// Hits returns the hits of a request, on one or several valid limits. A request without hits passes. An
	// invalid hit makes a decision impossible: see DenyOnError.
	Hits func(r *http.Request) []ratelimit.Hit
	// Timeout bounds the time that the database takes for a decision; see ratelimit.Store.Take. 0 means 250
	// ms.
	Timeout time.Duration
	// DenyOnError refuses a request with status 503 if no decision was possible. Otherwise such a request
	// passes, unless the error is ratelimit.ErrOverloaded.
	DenyOnError bool
	// OnError, if not nil, is called with the error if no decision was possible.
	OnError func(r *http.Request, err error)
}

// New returns a middleware that calls the next handler if the limits allow the request. It sets
// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset (Unix seconds) for the limit with
// the least remaining. A refusal has status 429, Retry-After and a JSON body.
//
// The error is a *ratelimit.FieldError: for a nil store, a Limit that ratelimit.NewLimiter refuses, a
// negative Timeout, or if neither Limit nor Hits is set.
func New(store ratelimit.Store, o Options) (func(next http.Handler) http.Handler, error) {
	if store == nil {
		return nil, &ratelimit.FieldError{Field: "store", Want: "a ratelimit.Store"}
	}
	if o.Hits == nil && o.Limit == nil {
		return nil, &ratelimit.FieldError{Field: "Limit", Want: "a limit, unless there are Hits"}
	}
	if o.Hits == nil {
		if _, err := ratelimit.NewLimiter(store, *o.Limit); err != nil {
			return nil, err
		}
		limit := *o.Limit
		o.Hits = func(r *http.Request) []ratelimit.Hit {
			key := reading.Network(reading.Connection(r), 32, 64)
			return []ratelimit.Hit{{Limit: &limit, Key: key, Cost: 1}}
		}
	}
	if o.Timeout < 0 {
		return nil, &ratelimit.FieldError{Field: "Timeout", Value: o.Timeout.String(), Want: "0 or more"}
	}
	site := &serve.Site{Store: store, Clock: &respond.Clock{}, Hits: o.Hits, Handler: settings.Handler{
		Timeout: o.Timeout, OnError: settings.Allow, Fields: settings.Fields{X: true}}}
	if o.Timeout == 0 {
		site.Timeout = ratelimit.DefaultTimeout
	}
	if o.DenyOnError {
		site.OnError = settings.Deny
	}
	site.Prepare()
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := &serve.Request{Writer: w}
			q.HTTP = r
			_ = serve.Decide(site, q) // fails only in matchers, and site has none
			if o.OnError != nil && q.Outcome.Err != nil {
				o.OnError(r, q.Outcome.Err)
			}
			if q.Outcome.Status != 0 {
				w.WriteHeader(q.Status)
				_, _ = io.WriteString(w, q.Body) // an error means that the client has closed the connection
				return
			}
			next.ServeHTTP(w, r)
		})
	}, nil
}
