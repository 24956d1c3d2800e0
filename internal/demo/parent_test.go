package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func TestItEndsWithItsParent(t *testing.T) {
	// A shell stands in for a make that is killed.
	inner := command(t, "well", cluster.Open(t), "-with-parent", "-port", freePort(t), "-state", t.TempDir())
	shell := exec.Command("/bin/sh", append([]string{"-c", `"$@" & echo $!; wait`, "sh"}, inner.Args...)...)
	shell.Env = inner.Env
	stdout, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	var pid int
	if _, err := fmt.Fscanln(out, &pid); err != nil {
		t.Fatal(err)
	}
	for line := ""; !strings.HasPrefix(line, "Ctrl-C"); {
		if line, err = out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := shell.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("it says at its end: %q, %v", rest, err)
	}
	_ = shell.Wait()
	awaitGone(t, pid)
}

func TestSignalWatch(t *testing.T) {
	const hup, interrupt, child = 1 << 0, 1 << 1, 1 << 16
	for name, test := range map[string]struct {
		blocked []uint64
		want    bool
	}{
		"none":               {[]uint64{0, 0, 0}, false},
		"another signal":     {[]uint64{0, child, child}, false},
		"for a moment":       {[]uint64{0, hup | interrupt, 0, interrupt}, false},
		"from the beginning": {[]uint64{hup | interrupt, hup | interrupt, hup | interrupt}, false},
		"SIGHUP":             {[]uint64{0, hup, hup}, true},
		"SIGINT":             {[]uint64{child, interrupt | child, interrupt | child}, true},
		"while it started":   {[]uint64{hup | interrupt, 0, hup, hup}, true},
	} {
		var watch signalWatch
		got := false
		for _, blocked := range test.blocked {
			got = watch.handles(blocked) || got
		}
		if got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// A make that is told to end by a signal to itself alone takes the demo along.
func TestASignalToMakeAlone(t *testing.T) {
	dsn := cluster.Open(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if s != syscall.SIGTERM && runtime.GOOS != "linux" {
			continue // it cannot be seen there
		}
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// Where the tests were told to ignore it, as nohup does, make would
			// ignore it, too.
			ours := make(chan os.Signal, 1)
			signal.Notify(ours, s)
			defer signal.Stop(ours)
			inner := command(t, "well", dsn, "-with-parent", "-port", freePort(t), "-state", t.TempDir())
			makefile := filepath.Join(t.TempDir(), "Makefile")
			recipe := "run:\n\t@exec '" + strings.Join(inner.Args, "' '") + "'\n"
			if err := os.WriteFile(makefile, []byte(recipe), 0o600); err != nil {
				t.Fatal(err)
			}
			outer := exec.Command("make", "-f", makefile, "run")
			outer.Env = inner.Env
			stdout, err := outer.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := outer.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(stdout)
			for line := ""; !strings.HasPrefix(line, "Ctrl-C"); {
				if line, err = out.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			if err := outer.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(out); err != nil {
				t.Error(err)
			}
			if err := outer.Wait(); err == nil {
				t.Errorf("make has ended well after %v", s)
			}
		})
	}
}
