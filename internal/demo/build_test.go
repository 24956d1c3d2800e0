package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFailedBuildTellsWhatTheCompilerSaidAndStopsTheDatabase(t *testing.T) {
	state := t.TempDir()
	d := &demo{state: state}
	out, err := command(t, "well", "", "-port", freePort(t), "-state", state, "-build", "echo main.go:1: what is that >&2; exit 1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make run: building Caddy: exit status 1: main.go:1: what is that") {
		t.Errorf("it ended with %v and says\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(d.cluster(t), "data", "postmaster.pid")); err == nil {
		t.Error("Postgres runs after the demo has ended")
	}
}
