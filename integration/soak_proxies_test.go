//go:build soak

package integration

import (
	"fmt"
	"testing"
)

// soakProxies is the number of proxies: Caddies, and a Traefik as the last one.
const soakProxies = 3

// soakRoutes returns the routes of a proxy, one for each lane.
func soakRoutes(name, upstream string) (routes []route) {
	for i := range lanes {
		l := &lanes[i]
		settings := object{"timeout": soakTimeout.String(), "audit": "all", "onError": l.onError,
			"nodeName": name, "region": name}
		switch {
		case l.governed:
			settings["policy"] = object{"apiKey": "{header.X-Api-Key}", "user": "{header.X-Key}"}
		case l.onError == "":
			settings = nil
		default:
			settings["prefix"], settings["key"] = l.name, "{header.X-Key}"
			if l.durable {
				settings["durable"], settings["synchronousCommit"] = true, true
			}
			if l.leased {
				settings["lease"] = "5%"
			}
		}
		for setting, value := range l.settings {
			settings[setting] = value
		}
		routes = append(routes, route{path: "/" + l.name, backend: upstream, limit: settings})
	}
	return routes
}

// startSoakProxies starts the proxies.
func startSoakProxies(t *testing.T, dsn, upstream string) (proxies []*controlledProxy) {
	t.Helper()
	for i := range soakProxies - 1 {
		name := fmt.Sprint("caddy", i+1)
		routes := soakRoutes(name, upstream)
		proxies = append(proxies, startControlledCaddy(t, buildCaddy(t), name, dsn, routes))
	}
	return append(proxies, startControlledTraefik(t, "traefik", dsn, soakRoutes("traefik", upstream)))
}
