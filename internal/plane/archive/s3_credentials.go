//go:build !nos3

package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// roleTimeout bounds each request for the credentials of a role. A machine without a role often
// has nobody who answers.
const roleTimeout = 5 * time.Second

// s3Credentials finds the credentials, and fails if there are none.
func s3Credentials(env func(string) string) (*credentials.Credentials, error) {
	id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")
	switch {
	case id != "" && secret != "":
		return credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN")), nil
	case id != "":
		return nil, &ratelimit.FieldError{Field: "AWS_SECRET_ACCESS_KEY", Want: "set, since AWS_ACCESS_KEY_ID is"}
	case secret != "":
		return nil, &ratelimit.FieldError{Field: "AWS_ACCESS_KEY_ID", Want: "set, since AWS_SECRET_ACCESS_KEY is"}
	}
	profile := env("AWS_PROFILE")
	file := credentials.NewFileAWSCredentials(env("AWS_SHARED_CREDENTIALS_FILE"), profile)
	value, err := file.GetWithContext(nil)
	switch {
	case err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "":
		return file, nil
	case err == nil && profile != "":
		return nil, &ratelimit.FieldError{Field: "AWS_PROFILE", Value: profile, Want: "a profile with aws_access_key_id and aws_secret_access_key, or credential_process, in the file of credentials"}
	case err != nil && (profile != "" || !errors.Is(err, fs.ErrNotExist)):
		return nil, fmt.Errorf("reading the credentials for S3: %w", err)
	}
	role := credentials.New(&credentials.IAM{Client: &http.Client{Timeout: roleTimeout}})
	if _, err := role.GetWithContext(nil); err != nil {
		return nil, fmt.Errorf("no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (there is no role either: %w)", err)
	}
	return role, nil
}
