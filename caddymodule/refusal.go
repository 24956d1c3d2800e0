package caddymodule

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
)

// What a site's error routes see. An error of the database stays in the log:
// error pages show {http.error.message} to anybody.
var (
	errTooMany     = errors.New("too many requests")
	errUnavailable = errors.New("no rate limit decision could be had")
)

// refuse answers a request that does not pass, or leaves that to the site's
// error routes.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, c *claims, a *edge.Answer) error {
	h.setPlaceholders(repl, c, a)
	// A literal: caddyhttp.Error walks the stack and makes up an ID.
	err := caddyhttp.HandlerError{Err: errTooMany, StatusCode: a.Status}
	if a.Status == http.StatusServiceUnavailable {
		err.Err = errUnavailable
	}
	if h.errorsCaught || errorRoutesAnswer(r, err) {
		return err
	}
	a.Refuse(w)
	return nil
}

// setPlaceholders makes {http.pg_ratelimit.*} known. What is not known is set,
// too: an unknown placeholder would show up as it is written.
func (h *Handler) setPlaceholders(repl *caddy.Replacer, c *claims, a *edge.Answer) {
	hit := &c.hits[a.Hit]
	limit, remaining, retryAfter := "", "", ""
	if d := a.Decision; d != nil {
		limit = strconv.FormatInt(d.Limit, 10)
		remaining = strconv.FormatInt(d.Remaining, 10)
	}
	if seconds := a.RetrySeconds(); seconds > 0 {
		retryAfter = strconv.FormatInt(seconds, 10)
	}
	repl.Set("http.pg_ratelimit.prefix", hit.Limit.Prefix)
	repl.Set("http.pg_ratelimit.key", storedKey(hit))
	repl.Set("http.pg_ratelimit.limit", limit)
	repl.Set("http.pg_ratelimit.remaining", remaining)
	repl.Set("http.pg_ratelimit.retry_after", retryAfter)
}

// catchesErrors reports whether a subroute (one with routes for errors of its
// own, which only JSON can say) stands around the module that is being set up.
func catchesErrors(ctx caddy.Context) bool {
	for _, module := range ctx.Modules() {
		if s, ok := module.(*caddyhttp.Subroute); ok && s.Errors != nil && len(s.Errors.Routes) > 0 {
			return true
		}
	}
	return false
}

// errorRoutesAnswer reports whether the server's error routes would answer the
// request after err. Several sites share a server, and of those only some may
// have handle_errors, or only for other statuses. Nobody can step in once Caddy
// has gone through error routes of which none matched: it then sends the status
// alone. So the routes' matchers are asked beforehand, as Caddy will ask them.
//
// A route that matches counts as an answer if it has any handler other than a
// subroute, whatever that does.
func errorRoutesAnswer(r *http.Request, err caddyhttp.HandlerError) bool {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || server.Errors == nil || len(server.Errors.Routes) == 0 {
		return false
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // in an error route already; its errors go nowhere
	}
	r = server.Errors.WithError(r, err)
	// Error routes see the request as it came, before any rewrite.
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		r.Method, r.RemoteAddr, r.RequestURI, r.URL = original.Method, original.RemoteAddr, original.RequestURI, original.URL
	}
	answers, _ := routesAnswer(server.Errors.Routes, r, map[string]bool{})
	return answers
}

// routesAnswer reports whether routes have a handler for the request, or else
// end without one at a terminal route. groups are those of which a route has
// matched: no other of theirs will run.
func routesAnswer(routes caddyhttp.RouteList, r *http.Request, groups map[string]bool) (answers, ends bool) {
	for i := range routes {
		route := &routes[i]
		if groups[route.Group] {
			continue
		}
		matches, err := route.MatcherSets.AnyMatchWithError(r)
		if err != nil {
			return true, true // Caddy will meet the same error, and say so
		}
		if !matches {
			continue
		}
		if route.Group != "" {
			groups[route.Group] = true
		}
		for _, handler := range route.Handlers {
			subroute, ok := handler.(*caddyhttp.Subroute)
			if !ok {
				return true, true
			}
			if answers, ends = routesAnswer(subroute.Routes, r, groups); answers || ends {
				return answers, true
			}
		}
		if route.Terminal {
			return false, true
		}
	}
	return false, false
}
