//go:build !nos3

package archive_test

import (
	"os/exec"
	"strings"
	"testing"
)

// A build with the tag nos3 does not contain the client for S3, and passes
// TestWithoutS3OnlyFoldersAreDestinations.
func TestBuildWithoutS3HasNoClient(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it builds a program")
	}
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "nos3",
		".").CombinedOutput()
	if err != nil || strings.Contains(string(deps), "minio") ||
		!strings.Contains(string(deps), "parquet-go") {
		t.Errorf("go list: error %v, want packages without a client for S3:\n%s", err, deps)
	}
	output, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-tags", "nos3", "-run",
		"^TestWithoutS3OnlyFoldersAreDestinations$", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(output), "--- PASS: TestWithoutS3OnlyFoldersAreDestinations") {
		t.Errorf("TestWithoutS3OnlyFoldersAreDestinations: error %v, want a pass:\n%s", err, output)
	}
}
