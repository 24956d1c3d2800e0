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

// elsewhere runs the test that calls it in a test binary without the race
// detector, and reports whether it did: then there is nothing left to do.
//
// Yaegi fills in types when they are first needed, without a lock: the same
// value, whoever is first, but the race detector cannot know. Everything that is
// interpreted is also tested compiled, with it.
func elsewhere(t *testing.T) bool {
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
