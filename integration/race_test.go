//go:build race

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMain replaces this program by the same tests without the race detector, and tells them
// where this one is. They start it again for the tests that call runWithRace.
//
// Most tests look at programs of their own, which are built without the race detector. Under
// Yaegi it reports what is no fault: Yaegi completes types when they are first needed, without
// a lock, and all goroutines write the same value. All interpreted code is also tested compiled,
// with the race detector.
func TestMain(m *testing.M) {
	if os.Getenv(raced) != "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, execUnraced())
	os.Exit(1)
}

// execUnraced does not return, unless it fails.
func execUnraced() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cache, err := filepath.Abs(".cache")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	program := filepath.Join(cache, "unraced.test")
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return syscall.Exec(program, append([]string{program}, os.Args[1:]...), append(os.Environ(), raced+"="+self))
}

// runWithRace has nothing to do: this is the program with the race detector.
func runWithRace(*testing.T) bool { return false }
