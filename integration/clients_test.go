package integration

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestClientsReadTheFieldsAndWait runs the clients of docs/caddy.md on a limit of 20 days that is used up.
// They wait for Retry-After unless they have a bound, and a parser of older drafts reads only the fields
// X-RateLimit.
func TestClientsReadTheFieldsAndWait(t *testing.T) {
	byFields := map[string]http.Handler{}
	for _, fields := range []string{"x", "ietf", "x ietf"} {
		byFields[fields] = compiled(t, ok, object{"dsn": "memory", "prefix": fields, "limit": "1 20d",
			"algorithm": "fixed_window", "fields": fields})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		byFields[r.FormValue("fields")].ServeHTTP(w, r)
	}))
	defer server.Close()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/clients")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(nodeModules(t, "testdata/clients/package.json"),
		filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "ask.mjs", server.URL)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]object
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for fields, parsed := range map[string]any{"x": 1.0, "ietf": nil, "x ietf": nil} { // NaN is null in JSON
		for name, want := range (object{"parsed": parsed, "got": "waits", "gotBounded": 429.0,
			"axios": "waits", "axiosBounded": 429.0}) {
			if got[fields][name] != want {
				t.Errorf("fields %s, %s: %v, want %v", fields, name, got[fields][name], want)
			}
		}
	}
}
