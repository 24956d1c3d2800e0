//go:build nos3

package archive_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
)

func TestWithoutS3(t *testing.T) {
	if _, err := archive.NewDestination("s3://bucket/limits"); err == nil ||
		!strings.Contains(err.Error(), "built without S3") {
		t.Errorf("error %v, want one that this program is built without S3", err)
	}
	if _, err := archive.NewDestination(t.TempDir()); err != nil {
		t.Errorf("a folder: error %v, want nil", err)
	}
}
