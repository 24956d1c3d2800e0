//go:build !nos3

package archive

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// s3 is a Destination in an S3 bucket.
type s3 struct {
	client         *minio.Client
	bucket, prefix string
}

const (
	uploadThreads = 2
	// roleTimeout bounds each request for the credentials of a role. A machine without a role often has no
	// server that answers such a request.
	roleTimeout = 5 * time.Second
)

// newS3 returns the destination s3://BUCKET/PREFIX. The environment configures the client, with the same
// variables as for other S3 tools. The client takes its credentials from the first of these that exists:
//
//   - AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and, if set, AWS_SESSION_TOKEN
//   - the profile AWS_PROFILE (default: default) in AWS_SHARED_CREDENTIALS_FILE (default:
//     ~/.aws/credentials)
//   - the role of the machine, the container or the pod
//
// These variables select the server:
//
//   - AWS_REGION or AWS_DEFAULT_REGION
//   - AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL: the address of a server other than Amazon's, such as
//     https://s3.example.com, where the name of the bucket is part of the path
func newS3(target string) (Destination, error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(target, scheme), "/")
	if bucket == "" || strings.ContainsAny(target, "?#@") {
		return nil, &ratelimit.FieldError{Field: "--to",
			Want: "s3://BUCKET/PREFIX, with the credentials in the environment"}
	}
	endpoint, secure, err := endpoint()
	if err != nil {
		return nil, err
	}
	creds := credentials.NewChainCredentials(
		[]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{Client: &http.Client{Timeout: roleTimeout}}})
	region, lookup := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
		minio.BucketLookupAuto
	if endpoint != defaultEndpoint {
		lookup = minio.BucketLookupPath
		if region == "" {
			region = "us-east-1" // the default of servers without regions
		}
	}
	client, err := minio.New(endpoint,
		&minio.Options{Creds: creds, Secure: secure, Region: region, BucketLookup: lookup})
	if err != nil {
		return nil, fmt.Errorf("S3: %w", err)
	}
	return &s3{client, bucket, strings.Trim(prefix, "/")}, nil
}

// defaultEndpoint is Amazon's server.
const defaultEndpoint = "s3.amazonaws.com"

// endpoint returns the host of the server, and whether it uses TLS.
func endpoint() (host string, secure bool, err error) {
	name := "AWS_ENDPOINT_URL_S3"
	if os.Getenv(name) == "" {
		name = "AWS_ENDPOINT_URL"
	}
	u, err := url.Parse(cmp.Or(os.Getenv(name), "https://"+defaultEndpoint))
	if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", false, &ratelimit.FieldError{Field: name,
			Want: "https:// or http:// with a host and, if need be, a port"}
	}
	return u.Host, u.Scheme == "https", nil
}

func (s *s3) String() string { return scheme + path.Join(s.bucket, s.prefix) }

func (s *s3) key(name string) string { return path.Join(s.prefix, name) }

func (s *s3) check(ctx context.Context) error {
	exists, err := s.client.BucketExists(ctx, s.bucket)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if !exists {
		return &ratelimit.FieldError{Field: "--to", Value: s.String(),
			Want: "a bucket that exists, in the region of AWS_REGION"}
	}
	return nil
}

// temporary creates a file on this machine and removes its name, so that the file disappears when the process
// ends, even if the process is killed.
func (s *s3) temporary(string) (*os.File, error) {
	f, err := os.CreateTemp("", "pg-ratelimit-archive-*"+extension)
	if err == nil {
		_ = os.Remove(f.Name()) // fails on Windows, because the file is open; the caller removes it later
	}
	return f, err
}

// store uploads the file with checksums, which the server verifies.
func (s *s3) store(ctx context.Context, f *os.File, name string) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	_, err = s.client.PutObject(ctx, s.bucket, s.key(name), io.NewSectionReader(f, 0, size), size,
		minio.PutObjectOptions{
			ContentType: "application/vnd.apache.parquet", NumThreads: uploadThreads, SendContentMd5: true,
		})
	return err
}

func (s *s3) list(ctx context.Context, prefix string) ([]string, error) {
	top := ""
	if s.prefix != "" {
		top = s.prefix + "/"
	}
	var names []string
	options := minio.ListObjectsOptions{Prefix: top + prefix, Recursive: true}
	for object := range s.client.ListObjects(ctx, s.bucket, options) {
		if object.Err != nil {
			return nil, object.Err
		}
		names = append(names, strings.TrimPrefix(object.Key, top))
	}
	return names, ctx.Err()
}

func (s *s3) open(ctx context.Context, name string) (source, error) {
	return s.client.GetObject(ctx, s.bucket, s.key(name), minio.GetObjectOptions{})
}
