package harness

import (
	"os"
	"path/filepath"
	"testing"
)

// RunCaddy runs a Caddy on a Caddyfile until the test's end. program is its path, and name is for messages, "" for caddy. Its
// files are in a folder of its own.
func RunCaddy(t testing.TB, name, program, caddyfile string, env ...string) *Process {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	return Start(t, Program{
		Name: name, Path: program, Dir: dir, Args: []string{"run", "--config", file, "--adapter", "caddyfile"},
		Env: append(env, "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir),
	})
}
