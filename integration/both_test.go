package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// bothProxies starts a Caddy and a Traefik in front of a backend, with limits that mean the same, and
// returns their URLs. A request waits for its decision, unless the settings have a timeout.
func bothProxies(t *testing.T, dsn, backend, inCaddy string, inTraefik object) map[string]string {
	t.Helper()
	inTraefik["dsn"] = dsn
	if inTraefik["timeout"] == nil {
		inTraefik["timeout"], inTraefik["onError"] = "30s", "deny"
		inCaddy = "timeout 30s\non_error deny\n" + inCaddy
	}
	tr := startTraefik(t, []route{{"/", backend, inTraefik}})
	address := harness.FreeAddress(t)
	limits := fmt.Sprintf("route {\n\tpg_ratelimit {\n\t\t%s\n\t}\n\treverse_proxy %s\n}",
		strings.ReplaceAll(inCaddy, "\n", "\n\t\t"), strings.TrimPrefix(backend, "http://"))
	c := launchConfig(t, buildCaddy(t), address, caddyfile(address, dsn, []caddyRoute{{"/*", []string{limits}}}))
	c.AwaitAddress(t, address)
	return map[string]string{"caddy": c.url, "traefik": tr.url}
}

// answersTo are the statuses of the answers to n requests.
func answersTo(t *testing.T, n int, url string, headers ...string) string {
	t.Helper()
	var all []string
	for range n {
		all = append(all, fmt.Sprint(harness.Ask(t, harness.Get(url, headers...)).Status))
	}
	return strings.Join(all, " ")
}
