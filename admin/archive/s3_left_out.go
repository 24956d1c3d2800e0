//go:build nos3

package archive

import "errors"

// newS3 returns an error, because this program was built without S3.
func newS3(string) (Destination, error) {
	return nil, errors.New("--to: this program was built without S3 (the build tag nos3): use a folder, or " +
		"a build without that tag")
}
