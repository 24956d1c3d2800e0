package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// caddyfile returns a config for all hosts without an admin endpoint and certificates, with a log in JSON.
func caddyfile(address, dsn string, routes []route) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{
	admin off
	persist_config off
	auto_https off
	log {
		output stderr
		format json
	}
	servers {
		protocols h1 h2c
	}
	pg_ratelimit {
		dsn %q
	}
}

http://%s {
	bind 127.0.0.1
`, dsn, strings.TrimPrefix(address, "127.0.0.1"))
	for _, r := range routes {
		fmt.Fprintf(&b, "handle %s* {\nroute {\n", r.path)
		if r.limit != nil {
			b.WriteString(directive(r.limit))
		}
		if r.backend != "" {
			fmt.Fprintf(&b, "reverse_proxy %s\n", strings.TrimPrefix(r.backend, "http://"))
		}
		b.WriteString("respond ok\n}\n}\n")
	}
	return b.String() + "}\n"
}

// buildCaddy builds the Caddy of `make build`, and returns its path.
func buildCaddy(t *testing.T) string {
	t.Helper()
	return harness.Caddy(t, "..")
}

// startCaddyOn starts a Caddy with a config that listens on the address, and waits until the Caddy listens.
func startCaddyOn(t *testing.T, address, config string, env ...string) *proxy {
	t.Helper()
	return &proxy{harness.RunCaddy(t, "Caddy on "+address, buildCaddy(t), address, config, env...),
		"http://" + address}
}

// loadConfig loads a Caddyfile, and fails the test unless the response has the wanted status.
func loadConfig(t *testing.T, admin, config string, want int) {
	t.Helper()
	if response := harness.LoadCaddyfile(t, admin, config); response.Status != want {
		t.Fatalf("reload: %d %s, want %d", response.Status, response.Body, want)
	}
}

func startCaddy(t *testing.T, dsn string, routes ...route) *proxy {
	t.Helper()
	address := harness.FreeAddress(t)
	return startCaddyOn(t, address, caddyfile(address, dsn, routes))
}
