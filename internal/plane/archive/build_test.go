//go:build !nos3

package archive_test

import (
	"os/exec"
	"strings"
	"testing"
)

func TestABuildWithoutS3HasNoClientAndSaysSo(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it builds a program")
	}
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "nos3",
		".").CombinedOutput()
	if err != nil || strings.Contains(string(deps), "minio") ||
		!strings.Contains(string(deps), "parquet-go") {
		t.Errorf("%v, want no client for S3 among what the package needs:\n%s", err, deps)
	}
	said, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-tags", "nos3", "-run",
		"^TestWithoutS3$", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "--- PASS: TestWithoutS3") {
		t.Errorf("%v:\n%s", err, said)
	}
}
