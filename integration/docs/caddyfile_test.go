package docs

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// unreachable is the DSN of a database that does not exist. A configuration
// loads without its database.
const unreachable = "postgres://nobody@127.0.0.1:1/none"

// caddy runs a command of a Caddy with the module.
func caddy(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(harness.Caddy(t, root), args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home,
		"DATABASE_URL="+unreachable, "PGDSN="+unreachable, "INTERNAL_SECRET=a secret for the snippets")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	return out.String(), log.String(), err
}

// writeConfig writes a configuration into a new file, and returns its path.
func writeConfig(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// isSyntax reports whether a block is a description of the syntax.
func isSyntax(b block) bool { return strings.Contains(b.text, "<prefix>") }

// Caddy accepts each Caddyfile of the documentation, which is formatted and has the handler.
func TestCaddyfilesOfPagesAreValid(t *testing.T) {
	for _, b := range blocksIn(t, "caddyfile") {
		t.Run(b.String(), func(t *testing.T) {
			if isSyntax(b) {
				return
			}
			// A further site uses the database of the global option.
			text := b.text + "\nhttp://snippet.test {\n\tpg_ratelimit snippet {\n\t\tlimit 1 1m\n\t}\n}\n"
			adapted, log, err := caddy(t, "adapt", "--adapter", "caddyfile", "--validate", "--config",
				writeConfig(t, "Caddyfile", text))
			if err != nil {
				t.Fatalf("%v\n%s", err, log)
			}
			if strings.Contains(log, "not formatted") {
				t.Errorf("the log has %q, want a formatted Caddyfile", log)
			}
			if strings.Count(adapted, `"pg_ratelimit`) < 2 {
				t.Errorf("the configuration lacks pg_ratelimit:\n%s", adapted)
			}
		})
	}
}

// Each JSON block of the documentation is a handler that Caddy accepts, or a body that a proxy sends.
func TestJSONOfPagesIsHandlerOrBody(t *testing.T) {
	bodies := []string{refusal(t, "web", "text"), refusal(t, "tpm", "object"), outage(t)}
	digits := regexp.MustCompile(`\d+`)
	for _, b := range blocksIn(t, "json") {
		t.Run(b.String(), func(t *testing.T) {
			var object map[string]any
			if err := json.Unmarshal([]byte(b.text), &object); err != nil {
				t.Fatal(err)
			}
			if object["handler"] == nil {
				body := digits.ReplaceAllString(strings.TrimSpace(b.text), "N")
				isBody := func(real string) bool { return digits.ReplaceAllString(real, "N") == body }
				if !slices.ContainsFunc(bodies, isBody) {
					t.Errorf("the body is\n%s\nwant one of\n%s", body, strings.Join(bodies, "\n"))
				}
				return
			}
			config := `{"apps": {"http": {"servers": {"s": {"listen": [":0"], "routes": [{"handle": [` +
				b.text + `]}]}}}}}`
			_, log, err := caddy(t, "validate", "--config", writeConfig(t, "caddy.json", config))
			if err != nil {
				t.Errorf("%v\n%s", err, log)
			}
		})
	}
}

// refusal returns the body of a refused request.
func refusal(t *testing.T, prefix, errors string) string {
	t.Helper()
	h := middleware(t, map[string]any{"dsn": "memory", "prefix": prefix, "key": "refusal", "limit": "1 1h",
		"errors": errors})
	ask(h)
	response := ask(h)
	if response.Code != http.StatusTooManyRequests {
		t.Fatalf("the second request of 1: status %d, want 429", response.Code)
	}
	return response.Body.String()
}

// outage returns the body of a request without a decision.
func outage(t *testing.T) string {
	t.Helper()
	response := ask(middleware(t, map[string]any{"dsn": unreachable, "prefix": "outage", "limit": "1 1h",
		"onError": "deny"}))
	if response.Code != http.StatusServiceUnavailable {
		t.Fatalf("a request without a database: status %d, want 503", response.Code)
	}
	return response.Body.String()
}
