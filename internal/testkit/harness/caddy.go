package harness

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// RunCaddy runs a Caddy with a Caddyfile until the test's end, and returns when it listens on address.
// program is its path, and name is its name in messages, "" for caddy. The Caddy has its own folder for
// files.
func RunCaddy(t testing.TB, name, program, address, caddyfile string, env ...string) *Process {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Start(t, Program{
		Name: name, Path: program, Dir: dir,
		Args: []string{"run", "--config", file, "--adapter", "caddyfile"},
		Env:  append(env, "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir),
	})
	p.AwaitAddress(t, address)
	return p
}

// LoadCaddyfile makes the Caddy with an admin endpoint load a Caddyfile, even if nothing has changed, and
// returns the response.
func LoadCaddyfile(t testing.TB, admin, caddyfile string) Response {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://"+admin+"/load", strings.NewReader(caddyfile))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "text/caddyfile")
	request.Header.Set("Cache-Control", "must-revalidate")
	return Ask(t, request)
}

// Replace replaces strings in a Caddyfile. oldNew has pairs of an old and a new string. Replace replaces the
// first occurrence of each old string, and fails the test if there is none.
func Replace(t testing.TB, caddyfile string, oldNew ...string) string {
	t.Helper()
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(caddyfile, oldNew[i]) {
			t.Fatalf("the Caddyfile has no %q:\n%s", oldNew[i], caddyfile)
		}
		caddyfile = strings.Replace(caddyfile, oldNew[i], oldNew[i+1], 1)
	}
	return caddyfile
}
