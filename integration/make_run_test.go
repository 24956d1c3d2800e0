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

// The program of `make run` prints commands to try, and each shows what the printed text around it says. A
// test of internal/demo covers a second run.
func TestMakeRunShowsAPolicy(t *testing.T) {
	text := readFile(t, "../Caddyfile.example")
	config := filepath.Join(t.TempDir(), "Caddyfile")
	// However slow the machine is, every request must get a decision.
	replaceFile(t, config, strings.ReplaceAll(text, "on_error allow", "timeout 1m\n\t\ton_error deny"))
	dsn := cluster.Open(t)
	demo, program := harness.Build(t, "..", "./internal/demo"), buildCaddy(t)
	tryDemo(t, demo, dsn, "-state", t.TempDir(), "-caddy", program, "-config", config)
}

// showsAll reports whether output contains all parts.
func showsAll(output string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(output, part) })
}

// demoLines are the commands to try that `make run` prints.
type demoLines struct {
	t     *testing.T
	dsn   string
	lines []string
}

// Indexes of the commands in demoLines.lines. The two commands before these need no name.
const (
	demoAnn = iota + 2
	demoAcme
	demoAnnAsks
	demoAcmeAsks
	demoUpgrade
	demoAnnAsksAgain
	demoChat
	demoSpend
	demoInvoice
	demoNotices
	demoAudit
	demoTop
)

// tryDemo starts the program of `make run`, and runs the commands that it prints.
func tryDemo(t *testing.T, demo, dsn string, args ...string) {
	t.Helper()
	address := harness.FreeAddress(t)
	port := address[strings.LastIndex(address, ":")+1:]
	p := harness.Start(t, harness.Program{
		Name: "make run", Path: demo, Env: []string{"DATABASE_URL=" + dsn},
		Args: append([]string{"-port", port}, args...),
	})
	await(t, "what to try", func() bool { return strings.Contains(p.Log(), "\nCtrl-C ends it.\n") })
	d := &demoLines{t: t, dsn: dsn}
	for line := range strings.Lines(p.Log()) {
		command, found := strings.CutPrefix(line, "  ")
		if found && regexp.MustCompile(`^(curl|for|[A-Z]+=|\S+ pg-ratelimit) ?`).MatchString(command) {
			d.lines = append(d.lines, strings.TrimSpace(command))
		}
	}
	if len(d.lines) != 14 {
		t.Fatalf("make run prints %d lines to try, want 14: %q", len(d.lines), d.lines)
	}

	wantContains(t, d.runInShell(demoAnn, demoAcme, demoAcmeAsks), "HTTP/1.1 200", "X-Ratelimit-Limit: 50\r")
	wantContains(t, d.runInShell(demoAnn, demoAcme, demoAnnAsks), "HTTP/1.1 200", "X-Ratelimit-Limit: 5\r",
		"Hello from /api/hello")
	wantContains(t, d.runInShell(0), "HTTP/1.1 200", "X-Ratelimit-Limit: 10\r", "Hello from /")
	wantContains(t, d.runInShell(1), "200 200 200 200 200 200 200 200 200 429 ")
	wantContains(t, d.runInShell(demoUpgrade), "The user ann is changed.")
	await(t, "the plan pro of ann", func() bool {
		return strings.Contains(d.runInShell(demoAnn, demoAnnAsksAgain), "X-Ratelimit-Limit: 50\r")
	})
	// The tenth answer is the last one. Its cost counts a moment after it.
	wantContains(t, d.runInShell(demoAnn, demoChat, demoSpend), `"total_tokens":150}}`+"\n", "budget/day")
	await(t, "the refusal of a used budget", func() bool {
		return strings.Contains(d.runInShell(demoAnn, demoChat, demoSpend),
			`{"message":"Budget used up: budget/day opens on 20`)
	})
	await(t, "the invoice", func() bool {
		return showsAll(d.words(demoInvoice), "CACHE WRITE OUTPUT MONEY ", " demo 10 1000 0 0 500 0.01")
	})
	await(t, "the notices", func() bool {
		return showsAll(d.words(demoNotices), "budget day ann ", " 80 0.0", " 100 0.01 0.01 ")
	})
	metrics := "http://localhost:" + port + "/metrics"
	wantContains(t, p.Log(), "\n  metrics   "+metrics+"\n")
	wantContains(t, harness.Ask(t, harness.Get(metrics)).Body, `prefix="rule/`)
	limits := "http://localhost:" + port + "/limits/"
	wantContains(t, p.Log(), "\n  page      "+limits+"\n")
	wantContains(t, harness.Ask(t, harness.Get(limits)).Body, "<!doctype html>")
	// A proxy writes the history in the background.
	await(t, "the history", func() bool {
		return showsAll(d.runInShell(demoAudit), "ann", "acme", "rule/pro", "/api/hello", "admitted",
			"limited", "demo", "127.0.0.1") &&
			showsAll(d.runInShell(demoTop), "demo", "127.0.0.1", "rule/free", "rule/pro", "ann")
	})
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
}

// runInShell runs lines in one shell, and returns what they print.
func (d *demoLines) runInShell(indexes ...int) string {
	d.t.Helper()
	var script []string
	for _, i := range indexes {
		script = append(script, d.lines[i])
	}
	cmd := exec.Command("sh", "-c", strings.Join(script, "\n"))
	cmd.Env = append(os.Environ(), "DATABASE_URL="+d.dsn, "HOME="+d.t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Errorf("%q: %v\n%s", script, err, out)
	}
	return string(out)
}

// words runs a line in a shell, and returns what it prints, with a space between words.
func (d *demoLines) words(index int) string {
	d.t.Helper()
	return strings.Join(strings.Fields(d.runInShell(index)), " ")
}

// wantContains fails the test unless output has all parts.
func wantContains(t *testing.T, output string, parts ...string) {
	t.Helper()
	if !showsAll(output, parts...) {
		t.Errorf("the output is\n%s\nwant %q", output, parts)
	}
}
