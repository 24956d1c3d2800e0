package integration

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
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
		protocols h1
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
	return indented(b.String() + "}\n")
}

// indented indents the lines of a Caddyfile by their blocks, as caddy fmt does, without which Caddy warns.
func indented(text string) string {
	var b strings.Builder
	depth := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "}" {
			depth--
		}
		if line != "" {
			b.WriteString(strings.Repeat("\t", depth))
		}
		b.WriteString(line + "\n")
		if strings.HasSuffix(line, "{") {
			depth++
		}
	}
	return b.String()
}

// caddy is a running Caddy.
type caddy struct {
	*harness.Process
	address string
	url     string // without a slash at the end
}

// buildCaddy builds the Caddy of `make build`, and returns its path.
func buildCaddy(t *testing.T) string {
	t.Helper()
	return harness.Caddy(t, "..")
}

// launchConfig starts a Caddy on a config that makes it listen on the address.
func launchConfig(t *testing.T, binary, address, config string, env ...string) *caddy {
	t.Helper()
	return &caddy{
		Process: harness.RunCaddy(t, "Caddy on "+address, binary, config, env...),
		address: address, url: "http://" + address,
	}
}

// loadConfig makes a Caddy with an admin endpoint load a Caddyfile, even if nothing has changed.
func loadConfig(t *testing.T, admin, config string) harness.Answer {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://"+admin+"/load", strings.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "text/caddyfile")
	request.Header.Set("Cache-Control", "must-revalidate")
	return harness.Ask(t, request)
}

// startCaddies starts n Caddys concurrently, and returns once all listen.
func startCaddies(t *testing.T, n int, dsn string, routes ...route) []*caddy {
	t.Helper()
	caddies := make([]*caddy, n)
	for i := range caddies {
		address := harness.FreeAddress(t)
		caddies[i] = launchConfig(t, buildCaddy(t), address, caddyfile(address, dsn, routes))
	}
	for _, c := range caddies {
		c.AwaitAddress(t, c.address)
	}
	return caddies
}

func startCaddy(t *testing.T, dsn string, routes ...route) *caddy {
	t.Helper()
	return startCaddies(t, 1, dsn, routes...)[0]
}

// A deployment replaces proxies one after the other, or all together. The database has the counts.
func TestCountsSurviveARestart(t *testing.T) {
	dsn := cluster.Open(t)
	limited := route{"/", "", decideAlways(object{"prefix": "restarted", "limit": "6 1h",
		"algorithm": "fixed_window"})}
	left := 6
	take := func(url string, stop func() error) {
		t.Helper()
		left--
		if answer := harness.Ask(t, harness.Get(url)); answer.Status != http.StatusOK ||
			answer.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(left) {
			t.Errorf("%s: %d %v, want 200 with %d left", url, answer.Status, answer.Header, left)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	for _, killed := range []bool{false, true} {
		c, tr := startCaddy(t, dsn, limited), startTraefik(t, []route{limited}, "DATABASE_URL="+dsn)
		stops := []func() error{c.Stop, tr.Stop}
		if killed {
			stops = []func() error{c.Kill, tr.Kill}
		}
		take(c.url, stops[0])
		take(tr.url, stops[1])
	}
}
