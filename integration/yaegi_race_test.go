//go:build race

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

// runWithoutRace runs the test that calls it in a test binary without the race detector,
// and returns true: the caller has nothing left to do.
//
// Yaegi completes types when they are first needed, without a lock. All goroutines write
// the same value, but the race detector does not know that. All interpreted code is also
// tested compiled, with the race detector.
func runWithoutRace(t *testing.T) bool {
	t.Helper()
	binary, err := unraced()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout=10m")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("without the race detector: %v\n%s", err, out)
	}
	return true
}

// unraced is this package's test binary without the race detector.
var unraced = sync.OnceValues(func() (string, error) {
	cache, err := filepath.Abs(".cache")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(cache, "unraced.test")
	cmd := exec.Command("go", "test", "-c", "-o", path, ".")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})
