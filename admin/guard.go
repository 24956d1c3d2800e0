package admin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// errOpenPage refuses a page that everybody could reach.
var errOpenPage = fmt.Errorf("pg_ratelimit_page: nothing in front of it keeps strangers out: put an " +
	"authentication (basic_auth, forward_auth, client certificates) or a matcher of networks (remote_ip, " +
	"client_ip) in front of it in its route, or set insecure")

// requiresCertificates reports whether a server requires a certificate of each client.
func requiresCertificates(s *caddyhttp.Server) bool {
	for _, p := range s.TLSConnPolicies {
		if c := p.ClientAuthentication; c == nil || c.Mode != "" && c.Mode != "require_and_verify" {
			return false
		}
	}
	return len(s.TLSConnPolicies) > 0
}

// guardRoutes sets guarded and the host names of the pages in a list of routes. The parameter guarded reports
// whether a guard precedes the list. hosts lists the host names of the requests that reach the list; nil
// means any. guardRoutes returns whether a guard precedes everything after the list.
func guardRoutes(list caddyhttp.RouteList, guarded bool, hosts []string) bool {
	// guards reports for each earlier route whether a handler of the route keeps strangers out, and rewriting
	// whether a handler may rewrite requests.
	guards, rewriting := make([]bool, len(list)), make([]bool, len(list))
	for i := range list {
		route := &list[i]
		inside, names := guarded || restrictsNetworks(route.MatcherSets), hosts
		if own := hostsOf(route.MatcherSets); own != nil {
			names = own
		}
		for k := i - 1; k >= 0; k-- {
			inside = inside || guards[k] && reflect.DeepEqual(list[k].MatcherSets, route.MatcherSets)
			// A rewritten request may match this route without having matched the routes before the rewrite.
			// Only a route of the same group never handles a request that route k rewrote.
			if rewriting[k] && (route.Group == "" || list[k].Group != route.Group) {
				break
			}
		}
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *Page:
				handler.guarded = handler.guarded || inside
				handler.hosts = append(handler.hosts, names...)
			case *caddyhttp.Subroute:
				// The routes for errors of a subroute may pass on a request that a guard refused.
				guards[i] = guardRoutes(handler.Routes, inside, names) && !inside && handler.Errors == nil ||
					guards[i]
			default:
				guards[i] = guards[i] || authenticates(handler)
			}
			inside = inside || guards[i]
		}
		// Another route of the group may match first, and Caddy then skips this one.
		guards[i] = guards[i] && route.Group == ""
		rewriting[i] = rewrites(*route)
		guarded = guarded || guards[i] && len(route.MatcherSets) == 0
	}
	return guarded
}

// hostsOf returns the host names to which a route is restricted, or nil without a restriction. A pattern such
// as *.example.com contributes no name.
func hostsOf(sets caddyhttp.MatcherSets) (names []string) {
	for _, set := range sets {
		var own []string
		for _, matcher := range set {
			if hosts, ok := matcher.(*caddyhttp.MatchHost); ok {
				own = slices.DeleteFunc(slices.Clone(*hosts),
					func(name string) bool { return strings.ContainsAny(name, "*{:") })
			}
		}
		if len(own) == 0 {
			return nil
		}
		names = append(names, own...)
	}
	return names
}

// rewrites reports whether a route may change which matchers match a request.
func rewrites(route caddyhttp.Route) bool {
	return slices.ContainsFunc(route.Handlers, func(handler caddyhttp.MiddlewareHandler) bool {
		if list, ok := handler.(*caddyhttp.Subroute); ok {
			return list.Errors != nil || slices.ContainsFunc(list.Routes, rewrites)
		}
		return isModule(handler, "http.handlers.rewrite") || isModule(handler, "http.handlers.invoke")
	})
}

// restrictsNetworks reports whether a route matches only some client addresses.
func restrictsNetworks(sets caddyhttp.MatcherSets) bool {
	return len(sets) > 0 && !slices.ContainsFunc(sets, func(set caddyhttp.MatcherSet) bool {
		return !slices.ContainsFunc(set, func(matcher any) bool {
			return isModule(matcher, "http.matchers.remote_ip") ||
				isModule(matcher, "http.matchers.client_ip")
		})
	})
}

// authenticates reports whether a handler passes on only authenticated requests. forward_auth is a reverse
// proxy that handles the responses of another server.
func authenticates(handler any) bool {
	if proxy, ok := handler.(*reverseproxy.Handler); ok {
		return len(proxy.HandleResponse) > 0
	}
	return isModule(handler, "http.handlers.authentication")
}

func isModule(value any, id caddy.ModuleID) bool {
	module, ok := value.(caddy.Module)
	return ok && module.CaddyModule().ID == id
}
