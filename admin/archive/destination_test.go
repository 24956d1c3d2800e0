package archive_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/archive"
)

// cleanEnvironment clears the environment variables of S3.
func cleanEnvironment(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", t.TempDir())
}

// expectNoSecret fails the test if err contains the secret of these tests.
func expectNoSecret(t *testing.T, err error) {
	t.Helper()
	if strings.Contains(fmt.Sprint(err), "hunter2") {
		t.Errorf("error %v, want it without a secret", err)
	}
}

// NewDestination returns an error that names what is wrong, without the secrets in the destination or the
// environment.
func TestUnusableDestinationsAreRejected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte(""), 0o600); err != nil {
		t.Fatal(err)
	}
	type env map[string]string
	keys := func(more env) env {
		all := env{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hunter2"}
		for name, value := range more {
			all[name] = value
		}
		return all
	}
	for _, c := range []struct {
		to   string
		env  env
		want string
	}{
		{to: "", want: "--to"},
		{to: file, want: "a folder that exists"},
		{to: filepath.Join(t.TempDir(), "missing"), want: "a folder that exists"},
		{to: "gs://bucket/x", env: keys(nil), want: "s3://BUCKET/PREFIX"},
		{to: "s3://", env: keys(nil), want: "s3://BUCKET/PREFIX"},
		{to: "https://id:hunter2@host/bucket", env: keys(nil), want: "s3://BUCKET/PREFIX"},
		{to: "s3://id:hunter2@bucket/x", env: keys(nil), want: "s3://BUCKET/PREFIX"},
		{to: "s3://bucket", env: keys(env{"AWS_ENDPOINT_URL": "localhost:9000"}), want: "AWS_ENDPOINT_URL"},
		{to: "s3://bucket", env: keys(env{"AWS_ENDPOINT_URL_S3": "https://id:hunter2@host"}),
			want: "AWS_ENDPOINT_URL_S3"},
		{to: "s3://bucket", env: keys(env{"AWS_ENDPOINT_URL": "https://host/path"}),
			want: "AWS_ENDPOINT_URL"},
	} {
		t.Run(c.want, func(t *testing.T) {
			cleanEnvironment(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			_, err := archive.NewDestination(c.to)
			expectError(t, err, c.want)
			expectNoSecret(t, err)
		})
	}
}

// If the server does not answer, the error names the bucket, and no row is deleted.
func TestUnreachableS3DeletesNothing(t *testing.T) {
	cleanEnvironment(t)
	_, conn := openAuditLog(t, 1, 10)
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hunter2",
		"AWS_ENDPOINT_URL": "http://127.0.0.1:1"} {
		t.Setenv(name, value)
	}
	to, err := archive.NewDestination("s3://bucket/limits")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	days, err := archive.Run(t.Context(), conn,
		archive.Options{Before: day(1), Destination: to, Drop: true, Now: today})
	expectError(t, err, "s3://bucket/limits")
	expectNoSecret(t, err)
	if len(days) > 0 {
		t.Errorf("Run returned the days %+v, want none", days)
	}
	t.Logf("after %v", time.Since(begin))
	if n := queryInt(t, conn, "SELECT count(*) FROM rate_limit_audit"); n != 10 {
		t.Errorf("%d rows are in the audit log, want 10", n)
	}
}
