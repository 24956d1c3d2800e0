// Package httplimit enforces limits in front of a net/http handler, with the
// headers and refusals of the Caddy module and the Traefik plugin.
package httplimit

import (
	"net"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a middleware.
type Options struct {
	// Hits returns what a request is charged, on one limit or several; none
	// lets it pass. Nil charges 1 on Limit to the address that RemoteAddr has:
	// behind a proxy that is the proxy's, so there write your own.
	Hits func(r *http.Request) []ratelimit.Hit

	// Limit is the limit that a nil Hits charges. It must be valid.
	Limit *ratelimit.Limit

	// Timeout is for the whole decision. 0 means 250 ms.
	Timeout time.Duration

	// DenyOnError answers 503 where no decision could be had; otherwise the
	// request passes.
	DenyOnError bool

	// OnError is told why no decision could be had. It may be nil.
	OnError func(r *http.Request, err error)
}

// Handler returns a handler that passes to next what the limits allow. The
// answer carries X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset
// (Unix seconds) of the limit with the least left; a refusal is 429 with
// Retry-After and a JSON body.
func Handler(store ratelimit.Store, o Options, next http.Handler) http.Handler {
	gate := &edge.Gate{Store: store, Timeout: o.Timeout, OnError: edge.Allow}
	if o.Timeout == 0 {
		gate.Timeout = edge.DefaultTimeout
	}
	if o.DenyOnError {
		gate.OnError = edge.Deny
	}
	hits := o.Hits
	if hits == nil {
		hits = func(r *http.Request) []ratelimit.Hit {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			if err != nil {
				host = r.RemoteAddr
			}
			return []ratelimit.Hit{{Limit: o.Limit, Key: host, Cost: 1}}
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := hits(r)
		answer := edge.Ask(r.Context(), gate, all, make([]ratelimit.Decision, len(all)))
		if answer.Err != nil && o.OnError != nil {
			o.OnError(r, answer.Err)
		}
		edge.SetHeaders(w.Header(), &answer)
		if answer.Status != 0 {
			answer.Refuse(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}
