package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// caddyRoute is a path of a Caddyfile's site and the limits on it. What passes is
// answered "ok".
type caddyRoute struct {
	path   string
	limits []string // pg_ratelimit directives, each with its block
}

// limit writes a pg_ratelimit directive. What is not said of it here is for the
// lines, each a subdirective.
func limit(prefix string, lines ...string) string {
	return "pg_ratelimit " + prefix + " {\n\t" + strings.Join(lines, "\n\t") + "\n}"
}

// decided are the subdirectives for a test in which every request must be
// decided, however slow the machine is: one that is not is answered 503.
var decided = []string{"timeout 1m", "on_error deny"}

// exactly is limit, with decided.
func exactly(prefix string, lines ...string) string {
	return limit(prefix, append(append([]string(nil), decided...), lines...)...)
}

// caddyfile is a config without anything that does not belong to the test: no
// admin endpoint, no certificates, and a log that programs can read.
func caddyfile(address, dsn string, routes []caddyRoute) string {
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
`, dsn, address)
	for _, r := range routes {
		fmt.Fprintf(&b, "\thandle %s {\n", r.path)
		for _, l := range r.limits {
			fmt.Fprintf(&b, "\t\t%s\n", strings.ReplaceAll(l, "\n", "\n\t\t"))
		}
		b.WriteString("\t\trespond ok\n\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// caddy is a Caddy that runs.
type caddy struct {
	*harness.Process
	address string
	url     string // without a slash at the end
}

// buildCaddy makes the Caddy that users get.
func buildCaddy(t *testing.T) string {
	t.Helper()
	return harness.Caddy(t, "..")
}

// launchCaddy starts a Caddy and does not wait for it.
func launchCaddy(t *testing.T, dsn string, routes ...caddyRoute) *caddy {
	t.Helper()
	address := harness.FreeAddress(t)
	return launchConfig(t, buildCaddy(t), address, caddyfile(address, dsn, routes))
}

// launchConfig starts a Caddy on a config that makes it listen on the address.
func launchConfig(t *testing.T, binary, address, config string, env ...string) *caddy {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return &caddy{
		Process: harness.Start(t, harness.Program{
			Name: "Caddy on port " + port, Path: binary, Dir: dir,
			Args: []string{"run", "--config", file, "--adapter", "caddyfile"},
			Env:  append(env, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir),
		}),
		address: address, url: "http://" + address,
	}
}

// loadConfig has a Caddy with an admin endpoint load a Caddyfile, also if nothing has changed.
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

// startCaddies starts n of them at once, and returns when all listen.
func startCaddies(t *testing.T, n int, dsn string, routes ...caddyRoute) []*caddy {
	t.Helper()
	buildCaddy(t) // so that the first is not late
	all := make([]*caddy, n)
	for i := range all {
		all[i] = launchCaddy(t, dsn, routes...)
	}
	for _, c := range all {
		c.AwaitAddress(t, c.address)
	}
	return all
}

func startCaddy(t *testing.T, dsn string, routes ...caddyRoute) *caddy {
	t.Helper()
	return startCaddies(t, 1, dsn, routes...)[0]
}

// ownWarnings are what a stock Caddy says at level warn where all is well.
var ownWarnings = []string{"admin endpoint disabled", "exiting; byeee!! 👋"}

// complaints are the lines of a Caddy's log that say that something is not
// well: of another level than info and debug, or no JSON.
func (c *caddy) complaints() []string {
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(c.Log()), "\n") {
		var entry struct{ Level, Msg string }
		err := json.Unmarshal([]byte(line), &entry)
		if err != nil || entry.Level != "info" && entry.Level != "debug" && !slices.Contains(ownWarnings, entry.Msg) {
			lines = append(lines, line)
		}
	}
	return lines
}
