//go:build soak

package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// soakProxies is the number of proxies: Caddies, and a Traefik as the last one.
const soakProxies = 3

// soakProxy is a proxy of a soak. It can be killed, and started again on the same addresses.
type soakProxy struct {
	name, url, admin string
	start            func()
	reload           func() error
	reject           func() error // reloads an invalid configuration
	process          func() *harness.Process
}

// soakRoutes returns the routes of a proxy, one for each lane. limit replaces the first limit, unless it is
// "".
func soakRoutes(name, upstream, limit string) (routes []route) {
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
		}
		for setting, value := range l.settings {
			settings[setting] = value
		}
		if limit != "" && settings["limit"] != nil {
			settings["limit"], limit = limit, ""
		}
		routes = append(routes, route{"/" + l.name, upstream, settings})
	}
	return routes
}

func newSoakCaddy(t *testing.T, name, dsn, upstream string) *soakProxy {
	t.Helper()
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	options := fmt.Sprintf("pg_ratelimit {\n\t\tnode_name %s\n\t\tregion %s\n", name, name)
	configOf := func(limit string) string {
		return harness.Replace(t, caddyfile(address, dsn, soakRoutes(name, upstream, limit)), "admin off",
			"admin "+admin, "pg_ratelimit {\n\t\tdsn", options+"\t\tdsn")
	}
	config := configOf("")
	var running *proxy
	p := &soakProxy{name: name, url: "http://" + address, admin: "http://" + admin}
	p.start = func() { running = startCaddyOn(t, address, config) }
	load := func(config string, want int) error {
		if response := loadConfig(t, admin, config); response.Status != want {
			return fmt.Errorf("%s: reload: %d %s, want %d", name, response.Status, response.Body,
				want)
		}
		return nil
	}
	p.reload = func() error { return load(config, http.StatusOK) }
	p.reject = func() error { return load(configOf("many 1h"), http.StatusBadRequest) }
	p.process = func() *harness.Process { return running.Process }
	p.start()
	return p
}

func newSoakTraefik(t *testing.T, name, dsn, upstream string) *soakProxy {
	t.Helper()
	routes := soakRoutes(name, upstream, "")
	tr := startTraefik(t, routes, "DATABASE_URL="+dsn)
	return &soakProxy{name: name, url: tr.url, admin: tr.admin,
		start:   func() { tr.start(t) },
		reload:  func() error { tr.reload(t, routes); return nil },
		reject:  func() error { tr.reject(t); tr.reload(t, routes); return nil },
		process: func() *harness.Process { return tr.Process },
	}
}

// startSoakProxies starts the proxies.
func startSoakProxies(t *testing.T, dsn, upstream string) (proxies []*soakProxy) {
	t.Helper()
	for i := range soakProxies - 1 {
		proxies = append(proxies, newSoakCaddy(t, fmt.Sprint("caddy", i+1), dsn, upstream))
	}
	return append(proxies, newSoakTraefik(t, "traefik", dsn, upstream))
}
