//go:build !race

package integration

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// runWithRace runs the test that calls it with the race detector, if go test was asked for it,
// and returns true: the caller has nothing left to do.
func runWithRace(t *testing.T) bool {
	t.Helper()
	program := os.Getenv(raced)
	if program == "" {
		return false
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), cluster.TestDSN+"="+cluster.Open(t)) // on the same server
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with the race detector: %v\n%s", err, out)
	}
	return true
}
