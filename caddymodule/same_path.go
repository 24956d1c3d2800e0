package caddymodule

import (
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// routedHandler is a handler of a server, and the routes around it: first the route of the
// server, then those of the subroutes, from the outside to the inside.
type routedHandler struct {
	handler *Handler
	routes  []outerRoute
}

// outerRoute is a route around a handler. index is that in its list of routes. inwards is
// the index, in this route, of the subroute with the next route, or of the handler itself.
type outerRoute struct {
	*caddyhttp.Route
	index, inwards int
}

// routedHandlers returns the handlers in a list of routes, in the order of requests. around
// are the routes around the list.
func routedHandlers(list caddyhttp.RouteList, around []outerRoute) (found []routedHandler) {
	for i := range list {
		for at, handler := range list[i].Handlers {
			routes := append(slices.Clone(around), outerRoute{&list[i], i, at})
			switch handler := handler.(type) {
			case *Handler:
				found = append(found, routedHandler{handler, routes})
			case *caddyhttp.Subroute:
				found = append(found, routedHandlers(handler.Routes, routes)...)
			}
		}
	}
	return found
}

// warnOfDoubleCharges warns of each prefix under which two handlers charge the same request, if
// it can be told that there are such requests.
func warnOfDoubleCharges(handlers []routedHandler) {
	for i, second := range handlers {
		var warned []string
		for _, first := range handlers[:i] {
			if first.handler.use.Limits != second.handler.use.Limits {
				continue
			}
			prefixes, policies := doubleCharges(first, second)
			if policies {
				second.handler.logger.Warn("another handler on the same path has a policy: a request that reaches both is charged twice")
			}
			for _, prefix := range prefixes {
				if !slices.Contains(warned, prefix) {
					warned = append(warned, prefix)
					second.handler.logger.Warn("another handler on the same path counts under this prefix: a request that reaches both is charged twice",
						zap.String("prefix", prefix))
				}
			}
		}
	}
}

// doubleCharges returns the prefixes under which two handlers charge one request, and whether
// both charge the limits of a policy.
func doubleCharges(first, second routedHandler) (prefixes []string, policies bool) {
	exclusive, firstMatches, secondMatches := compare(first.routes, second.routes)
	if exclusive {
		return nil, false
	}
	// If both have matchers, such as different hosts, there may be no request that reaches
	// both.
	policies = first.handler.site.Policy != nil && second.handler.site.Policy != nil && !(firstMatches && secondMatches)
	for _, one := range first.handler.site.Zones {
		for _, two := range second.handler.site.Zones {
			if (firstMatches || one.Match != nil) && (secondMatches || two.Match != nil) {
				continue
			}
			if edge.MayShareRow(one, two) {
				prefixes = append(prefixes, two.Limit.Prefix)
			}
		}
	}
	return prefixes, policies
}

// compare compares the routes around two handlers of a server. It reports whether no
// request reaches both, and which of the handlers have matchers around them that are not
// around the other one.
func compare(first, second []outerRoute) (exclusive, firstMatches, secondMatches bool) {
	for first[0] == second[0] { // a subroute around both
		first, second = first[1:], second[1:]
	}
	if first[0].index == second[0].index { // a route around both
		first, second = first[1:], second[1:]
	} else if group := first[0].Group; group != "" && group == second[0].Group {
		return true, false, false
	}
	for _, r := range first {
		exclusive = exclusive || r.Terminal
		firstMatches = firstMatches || len(r.MatcherSets) > 0
	}
	for _, r := range second {
		secondMatches = secondMatches || len(r.MatcherSets) > 0
	}
	return exclusive, firstMatches, secondMatches
}
