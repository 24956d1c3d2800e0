//go:build nos3

package archive_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/admin/archive"
)

// With the build tag nos3, an S3 destination is an error, and a folder is not.
func TestWithoutS3OnlyFoldersAreDestinations(t *testing.T) {
	_, err := archive.NewDestination("s3://bucket/limits")
	expectError(t, err, "built without S3")
	if _, err := archive.NewDestination(t.TempDir()); err != nil {
		t.Errorf("a folder: error %v, want nil", err)
	}
}
