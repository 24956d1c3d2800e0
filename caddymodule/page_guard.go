package caddymodule

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

// openPages starts the pages of a config. It returns an error if a page has no guard in front of it.
func (a *App) openPages(servers map[string]*caddyhttp.Server) error {
	for _, server := range servers {
		guardRoutes(server.Routes, requiresCertificates(server), nil)
	}
	for _, p := range a.pages {
		if !p.insecure && !p.guarded {
			return errOpenPage
		}
	}
	for _, p := range a.pages {
		if err := p.serve(a); err != nil {
			return err
		}
	}
	return nil
}

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
	// matched holds the matchers of earlier routes with a guard, until a handler rewrites requests.
	var matched []caddyhttp.MatcherSets
	for i := range list {
		route := &list[i]
		inside, names := guarded || restrictsNetworks(route.MatcherSets), hosts
		if own := hostsOf(route.MatcherSets); own != nil {
			names = own
		}
		for _, sets := range matched {
			inside = inside || reflect.DeepEqual(sets, route.MatcherSets)
		}
		guards := false
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *Page:
				handler.guarded = handler.guarded || inside
				handler.hosts = append(handler.hosts, names...)
			case *caddyhttp.Subroute:
				guards = guardRoutes(handler.Routes, inside, names) && !inside || guards
			default:
				guards = guards || authenticates(handler)
			}
			inside = inside || guards
			// A subroute of a group does not rewrite the requests of later routes, because only one route of
			// a group handles a request.
			if _, isList := handler.(*caddyhttp.Subroute); rewrites(handler) &&
				(!isList || route.Group == "") {
				matched = nil
			}
		}
		if guards && len(route.MatcherSets) == 0 {
			guarded = true
		} else if guards {
			matched = append(matched, route.MatcherSets)
		}
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

// rewrites reports whether a handler may change which matchers match a request.
func rewrites(handler any) bool {
	if list, ok := handler.(*caddyhttp.Subroute); ok {
		for i := range list.Routes {
			for _, h := range list.Routes[i].Handlers {
				if rewrites(h) {
					return true
				}
			}
		}
		return false
	}
	return isModule(handler, "http.handlers.rewrite")
}

// restrictsNetworks reports whether a route matches only some client addresses.
func restrictsNetworks(sets caddyhttp.MatcherSets) bool {
	for _, set := range sets {
		restricted := false
		for _, matcher := range set {
			switch matcher.(type) {
			case *caddyhttp.MatchRemoteIP, caddyhttp.MatchRemoteIP, *caddyhttp.MatchClientIP,
				caddyhttp.MatchClientIP:
				restricted = true
			}
		}
		if !restricted {
			return false
		}
	}
	return len(sets) > 0
}

// authenticates reports whether a handler passes on only authenticated requests. forward_auth is a reverse
// proxy that handles the responses of another server.
func authenticates(handler any) bool {
	if proxy, ok := handler.(*reverseproxy.Handler); ok {
		return len(proxy.HandleResponse) > 0
	}
	return isModule(handler, "http.handlers.authentication")
}

func isModule(handler any, id caddy.ModuleID) bool {
	module, ok := handler.(caddy.Module)
	return ok && module.CaddyModule().ID == id
}
