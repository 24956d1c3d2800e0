package caddymodule

import (
	"errors"
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// Errors for the error routes of a site. Error pages often show {http.error.message} to clients, so these
// errors omit the error of the database, which is only logged.
var (
	errTooMany     = errors.New("too many requests")
	errUnavailable = errors.New("no rate limit decision was possible")
)

// refuse responds to a refused request, or returns an error for the site's error routes.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, q *serve.Request) error {
	outcome := &q.Outcome
	// caddyhttp.Error would walk the stack.
	err := caddyhttp.HandlerError{Err: errTooMany, StatusCode: outcome.Status}
	switch {
	case outcome.Err != nil:
		err.Err = errUnavailable
	case outcome.Decision == nil || outcome.Message != "":
		err.Err = errors.New(outcome.Text())
	}
	if h.hasErrorRoutes || errorRoutesRespond(r, err) {
		return err
	}
	status, body := outcome.SetContent(w.Header())
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // an error means that the client has closed the connection
	return nil
}

// inSubrouteWithErrorRoutes reports whether the module of ctx is in a subroute with error routes, which only
// JSON can have.
func inSubrouteWithErrorRoutes(ctx caddy.Context) bool {
	for _, module := range ctx.Modules() {
		if s, ok := module.(*caddyhttp.Subroute); ok && s.Errors != nil && len(s.Errors.Routes) > 0 {
			return true
		}
	}
	return false
}

// errorRoutesRespond reports whether the server's error routes would respond to the request after err.
// Several sites share a server, and a site may have no handle_errors, or only for other statuses. If no error
// route matches, Caddy sends the status without a body. So errorRoutesRespond evaluates the matchers now, as
// Caddy would do later.
//
// A route that matches counts as a response if it has any handler other than a subroute.
func errorRoutesRespond(r *http.Request, err caddyhttp.HandlerError) bool {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || server.Errors == nil || len(server.Errors.Routes) == 0 {
		return false
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // errors of an error route go to no other route
	}
	r = server.Errors.WithError(r, err)
	// Error routes get the request as it was before any rewrite.
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		r.Method, r.RemoteAddr, r.RequestURI, r.URL = original.Method, original.RemoteAddr,
			original.RequestURI, original.URL
	}
	responds, _ := routesRespond(server.Errors.Routes, r, map[string]bool{})
	return responds
}

// routesRespond reports whether a route that matches the request has a handler that responds. If not, ends
// reports whether a terminal route has matched, after which Caddy runs no other. groups holds the groups in
// which a route has matched, since Caddy runs only the first route of each group that matches.
func routesRespond(
	routes caddyhttp.RouteList, r *http.Request, groups map[string]bool,
) (responds, ends bool) {
	for i := range routes {
		route := &routes[i]
		if groups[route.Group] {
			continue
		}
		matches, err := route.MatcherSets.AnyMatchWithError(r)
		if err != nil {
			return true, true // Caddy gets the same error later, and logs it
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
			if responds, ends = routesRespond(subroute.Routes, r, groups); responds || ends {
				return responds, true
			}
		}
		if route.Terminal {
			return false, true
		}
	}
	return false, false
}
