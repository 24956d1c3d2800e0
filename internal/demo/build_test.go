package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
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

func TestTheBuildEndsWithTheDemo(t *testing.T) {
	note := filepath.Join(t.TempDir(), "pid")
	cmd := command(t, "well", cluster.Open(t), "-port", freePort(t), "-state", t.TempDir(),
		"-build", "echo $$ >'"+note+".new' && mv '"+note+".new' '"+note+"' && exec sleep 600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the build begins", func() bool { _, err := os.Stat(note); return err == nil })
	pid := number(t, note)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	awaitGone(t, pid)
}
