package integration

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// route limits the requests below a path, and sends them to backend.
type route struct {
	path    string
	backend string // a URL; without one, the response is "ok"
	limit   object // settings by their names in Traefik, nil for no limit; PROXY stands for caddy or traefik
}

// decideAlways makes a proxy wait long enough for a decision on a slow machine, and
// refuse requests without one.
func decideAlways(limit object) object {
	limit["timeout"], limit["onError"] = "30s", "deny"
	return limit
}

// proxy is a Caddy or a Traefik that runs.
type proxy struct {
	*harness.Process
	url string // without a slash at the end
}

// startBoth starts a Caddy and a Traefik with the same routes.
func startBoth(t *testing.T, dsn string, routes ...route) []proxy {
	t.Helper()
	c, tr := startCaddy(t, dsn, routes...), startTraefik(t, routes, "DATABASE_URL="+dsn)
	return []proxy{*c, {tr.Process, tr.url}}
}

// controlledProxy is a proxy that a test kills, starts again on the same addresses, and reloads.
type controlledProxy struct {
	*harness.Process // the process of the latest start
	name, url, admin string
	program          string // of a Caddy
	start, reload    func()
	reject           func() // reloads an invalid configuration, which changes nothing
}

func startControlledCaddy(t *testing.T, program, name, dsn string, routes []route) *controlledProxy {
	t.Helper()
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsn, routes), "admin off", "admin "+admin,
		"pg_ratelimit {\n", fmt.Sprintf("pg_ratelimit {\n\t\tnode_name %s\n\t\tregion %[1]s\n", name))
	p := &controlledProxy{name: name, url: "http://" + address, admin: "http://" + admin, program: program}
	p.start = func() { p.Process = harness.RunCaddy(t, name, p.program, address, config) }
	p.reload = func() { loadConfig(t, admin, config, http.StatusOK) }
	p.reject = func() {
		invalid := harness.Replace(t, config, "\nlimit ", "\nlimit many ")
		loadConfig(t, admin, invalid, http.StatusBadRequest)
	}
	p.start()
	return p
}

func startControlledTraefik(t *testing.T, name, dsn string, routes []route) *controlledProxy {
	t.Helper()
	tr := startTraefik(t, routes, "DATABASE_URL="+dsn)
	p := &controlledProxy{Process: tr.Process, name: name, url: tr.url, admin: tr.admin}
	p.start = func() { tr.start(t); p.Process = tr.Process }
	p.reload = func() { tr.reload(t, routes) }
	p.reject = func() { tr.reject(t) }
	return p
}

// bothProxies starts a Caddy and a Traefik in front of a backend, with the same limits, and returns their
// URLs. A request waits for its decision, unless the settings have a timeout.
func bothProxies(t *testing.T, dsn, backend string, limit object) map[string]string {
	t.Helper()
	if limit["timeout"] == nil {
		limit = decideAlways(limit)
	}
	both := startBoth(t, dsn, route{path: "/", backend: backend, limit: limit})
	return map[string]string{"caddy": both[0].url, "traefik": both[1].url}
}

// onlyInTraefik lists settings that are not in Caddy's directive. Caddy has placeholders and finds client
// addresses without the module, and has global options for the others, or none.
var onlyInTraefik = []string{"ipStrategy", "forwardHeaders", "nodeName", "region", "history",
	"rememberedRefusals", "graceTimeOut"}

var capital = regexp.MustCompile("[A-Z]")

// caddySettingName returns the name of a setting in Caddy.
func caddySettingName(name string) string {
	return capital.ReplaceAllStringFunc(name, func(letter string) string {
		return "_" + strings.ToLower(letter)
	})
}

// directive converts the settings of a Traefik middleware to a Caddyfile directive.
func directive(settings object) string {
	return "pg_ratelimit {\n" + strings.ReplaceAll(subdirectives(settings), "PROXY", "caddy") + "}\n"
}

func subdirectives(settings object) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if slices.Contains(onlyInTraefik, name) {
			continue
		}
		switch value := settings[name].(type) {
		case []object:
			for _, zone := range value {
				rest := maps.Clone(zone)
				delete(rest, "prefix")
				fmt.Fprintf(&b, "zone %q {\n%s}\n", zone["prefix"], subdirectives(rest))
			}
		case object:
			if name == "match" {
				value = matchers(value)
			}
			fmt.Fprintf(&b, "%s {\n%s}\n", caddySettingName(name), subdirectives(value))
		case bool:
			fmt.Fprintf(&b, "%s %s\n", caddySettingName(name), onOff(value))
		default:
			fmt.Fprintf(&b, "%s %v\n", caddySettingName(name), value)
		}
	}
	return b.String()
}

// matchers converts a match setting of Traefik to Caddy's matchers.
func matchers(match object) object {
	matchers := object{}
	for name, list := range match {
		matchers[strings.TrimSuffix(name, "s")] = strings.ReplaceAll(fmt.Sprint(list), ",", " ")
	}
	return matchers
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// statusesOf returns the statuses of n responses of a URL.
func statusesOf(t *testing.T, n int, url string, headers ...string) string {
	t.Helper()
	var statuses []string
	for range n {
		statuses = append(statuses, fmt.Sprint(harness.Ask(t, harness.Get(url, headers...)).Status))
	}
	return strings.Join(statuses, " ")
}
