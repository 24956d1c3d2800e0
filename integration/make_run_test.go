package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestMakeRunShowsAPolicy starts what `make run` starts, twice on one database, and types the
// lines that it prints.
func TestMakeRunShowsAPolicy(t *testing.T) {
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "Caddyfile")
	// Every request has to be decided here, however slow the machine is.
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(text), "on_error allow",
		"timeout 1m\n\t\ton_error deny")), 0o600); err != nil {
		t.Fatal(err)
	}
	dsn := cluster.Open(t)
	demo, program := harness.Build(t, "..", "./internal/demo"), buildCaddy(t)
	before, state := "", t.TempDir()
	for range 2 {
		address := harness.FreeAddress(t)
		port := address[strings.LastIndex(address, ":")+1:]
		p := harness.Start(t, harness.Program{
			Name: "make run", Path: demo, Env: []string{"DATABASE_URL=" + dsn},
			Args: []string{"-port", port, "-state", state, "-caddy", program, "-config", config},
		})
		await(t, "what to try", func() bool { return strings.Contains(p.Log(), "\nCtrl-C ends it.\n") })
		var lines []string
		for line := range strings.Lines(p.Log()) {
			command, found := strings.CutPrefix(line, "  ")
			if found && regexp.MustCompile(`^(curl|for|[A-Z]+=|\S+ pg-ratelimit) ?`).MatchString(command) {
				lines = append(lines, strings.TrimSpace(command))
			}
		}
		if len(lines) != 10 {
			t.Fatalf("it prints %d lines to try, want 10: %q", len(lines), lines)
		}
		typed := func(which ...int) string {
			t.Helper()
			var script []string
			for _, i := range which {
				script = append(script, lines[i])
			}
			cmd := exec.Command("sh", "-c", strings.Join(script, "\n"))
			cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%q: %v\n%s", script, err, out)
			}
			return string(out)
		}
		const ann, acme, annAsks, acmeAsks, upgrade, annAsksAgain, audit, top = 2, 3, 4, 5, 6, 7, 8, 9
		shows := func(said string, parts ...string) {
			t.Helper()
			if !showsAll(said, parts...) {
				t.Errorf("it shows\n%s\nwant %q", said, parts)
			}
		}
		shows(typed(ann, acme, acmeAsks), "HTTP/1.1 200", "X-Ratelimit-Limit: 50\r")
		switch before {
		case "":
			shows(typed(ann, acme, annAsks), "X-Ratelimit-Limit: 5\r")
			shows(typed(ann, acme, annAsks), "HTTP/1.1 200", "Hello from /api/hello")
			shows(typed(0), "HTTP/1.1 200", "X-Ratelimit-Limit: 10\r", "Hello from /")
			shows(typed(1), "200 200 200 200 200 200 200 200 200 429 ")
		case lines[ann]:
			shows(typed(ann, acme, annAsks), "X-Ratelimit-Limit: 50\r") // the plan of the run before
		default:
			t.Errorf("the second run prints %s, and the first %s", lines[ann], before)
		}
		shows(typed(upgrade), "The user ann is changed.")
		await(t, "the plan pro of ann", func() bool {
			return strings.Contains(typed(ann, annAsksAgain),
				"X-Ratelimit-Limit: 50\r")
		})
		metrics := "http://localhost:" + port + "/metrics"
		shows(p.Log(), "\n  metrics   "+metrics+"\n")
		shows(harness.Ask(t, harness.Get(metrics)).Body, "\ncaddy_pg_ratelimit_policy_decisions_total{")
		limits := "http://localhost:" + port + "/limits/"
		shows(p.Log(), "\n  page      "+limits+"\n")
		shows(harness.Ask(t, harness.Get(limits)).Body, "<!doctype html>")
		shows(harness.Ask(t, harness.Get(limits+"api/state")).Body, `"state":"enforcing"`)
		// A proxy writes the history in the background.
		await(t, "the history of the requests", func() bool {
			return showsAll(typed(audit), "ann", "acme", "rule/pro", "/api/hello", "allowed", "limited",
				"demo", "127.0.0.1") &&
				showsAll(typed(top), "demo", "127.0.0.1", "rule/free", "rule/pro", "ann")
		})
		before = lines[ann]
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// showsAll reports whether a text contains all parts.
func showsAll(said string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(said, part) })
}
