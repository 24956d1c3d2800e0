package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func TestALongBuildTellsHowFarItIs(t *testing.T) {
	var told bytes.Buffer
	b := builder{
		list:  "echo one; echo two; echo three; echo 'go: downloading four' >&2; sleep 0.5",
		build: "echo one >&2; echo two >&2; sleep 0.5",
		tell:  &told, tick: 100 * time.Millisecond,
	}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Caddy: 1 modules downloaded, 0 s\n", "Caddy: 2 of at most 3 packages compiled, 0 s\n", "Caddy: built in 0 s\n"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("the user does not read %q:\n%s", want, told.String())
		}
	}
}

func TestAShortBuildIsSilent(t *testing.T) {
	var told bytes.Buffer
	if err := (builder{list: "echo one", build: "echo one >&2", tell: &told, tick: time.Hour}).run(t.Context()); err != nil || told.Len() > 0 {
		t.Errorf("%v, %s", err, told.String())
	}
}

func TestAFailedBuildTellsWhatTheCompilerSaid(t *testing.T) {
	out, err := command(t, "well", "", "-port", freePort(t), "-state", t.TempDir(), "-build", "echo main.go:1: what is that >&2; exit 1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make run: building Caddy: exit status 1: main.go:1: what is that") {
		t.Errorf("it ended with %v and says\n%s", err, out)
	}
}

func TestAMissingPostgresIsToldWithoutABuild(t *testing.T) {
	t.Setenv("PG_BINDIR", t.TempDir())
	began := time.Now()
	out, err := command(t, "well", "", "-port", freePort(t), "-state", t.TempDir(), "-build", "exec sleep 600").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "PG_BINDIR") {
		t.Errorf("it ended with %v and says\n%s", err, out)
	}
	if waited := time.Since(began); waited > time.Minute {
		t.Errorf("it took %v: it waited for the build", waited)
	}
}

func TestTheBuildEndsWithTheDemo(t *testing.T) {
	dsn := cluster.Open(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			note := filepath.Join(t.TempDir(), "pid")
			cmd := command(t, "well", dsn, "-port", freePort(t), "-state", t.TempDir(),
				"-build", "echo $$ >'"+note+".new' && mv '"+note+".new' '"+note+"' && exec sleep 600")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			for deadline := time.Now().Add(time.Minute); pid == 0; time.Sleep(10 * time.Millisecond) {
				if text, err := os.ReadFile(note); err == nil {
					pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				}
				if time.Now().After(deadline) {
					t.Fatal("the build does not begin")
				}
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); (err == nil) != (s == syscall.SIGINT) {
				t.Errorf("it ended with %v", err)
			}
			awaitGone(t, pid)
		})
	}
}

func TestTheDatabaseStopsIfTheBuildFails(t *testing.T) {
	state := t.TempDir()
	out, err := command(t, "well", "", "-port", freePort(t), "-state", state, "-build", "sleep 3; exit 7").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "exit status 7") {
		t.Errorf("it ended with %v and says\n%s", err, out)
	}
	folder := filepath.Join(state, "postgres")
	if elsewhere, err := os.ReadFile(filepath.Join(state, "postgres.elsewhere")); err == nil {
		folder = strings.TrimSpace(string(elsewhere))
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
	}
	if _, err := os.Stat(filepath.Join(folder, "data", "postmaster.pid")); err == nil {
		t.Error("Postgres runs after the demo has ended")
	}
}

func TestBuilderWithoutACommandBuildsNothing(t *testing.T) {
	if err := (builder{}).run(context.Background()); err != nil {
		t.Error(err)
	}
}
