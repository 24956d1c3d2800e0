package leash

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// asProgram is the variable that makes this test binary be a program with a
// child on a leash: a shell command, which the variable holds.
const asProgram = "PG_RATELIMIT_LEASH_TEST_PROGRAM"

func TestMain(m *testing.M) {
	command := os.Getenv(asProgram)
	if command == "" {
		os.Exit(m.Run())
	}
	if err := program(command, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // until SIGKILL
}

// program starts the command on a leash that removes the folder.
func program(command, folder string) error {
	l, err := New(syscall.SIGTERM, folder)
	if err != nil {
		return err
	}
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		return err
	}
	if err := l.Hold(other.Process.Pid); err != nil {
		return err
	}
	if err := l.Hold(0); err != nil {
		return err
	}
	child := exec.Command("/bin/sh", "-c", command)
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child.Stdout = os.Stdout // closes with the child, not with its parent
	if err := child.Start(); err != nil {
		return err
	}
	if err := l.Hold(child.Process.Pid); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, other.Process.Pid)
	return nil
}

// A program is killed: the child that it named last is asked to end, and the
// folder goes when it has.
func TestTheChildGoesWithItsParent(t *testing.T) {
	for name, test := range map[string]struct{ command, says string }{
		"asked":            {`trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.02; done`, "asked\n"},
		"stopped":          {`trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.02; kill -STOP $$; done`, "asked\n"},
		"ended before":     {`echo ready; exit`, ""},
		"writes until end": {`trap 'echo >"$FOLDER/last"; echo asked; exit' TERM; echo ready; while :; do sleep 0.02; done`, "asked\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			folder := filepath.Join(t.TempDir(), "a folder")
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			parent := exec.Command(self, folder)
			parent.Env = append(os.Environ(), asProgram+"="+test.command, "FOLDER="+folder)
			stdout, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stderr, err := parent.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			var other int
			if _, err := fmt.Fscanln(stderr, &other); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(stdout)
			if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
				t.Fatalf("the child says %q, %v", line, err)
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			said, err := io.ReadAll(out)
			if err != nil {
				t.Fatal(err)
			}
			if string(said) != test.says {
				t.Errorf("the child says %q at its end, want %q", said, test.says)
			}
			if err := parent.Wait(); err == nil {
				t.Error("the killed program ended well")
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the folder is still there")
				}
			}
			// The child that it had let go of was left alone.
			if err := syscall.Kill(other, syscall.SIGKILL); err != nil {
				t.Errorf("the child that it had let go of: %v", err)
			}
		})
	}
}
