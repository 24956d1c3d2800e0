//go:build !nos3

package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// s3 is a bucket as a destination.
type s3 struct {
	client         *minio.Client
	bucket, prefix string
}

const (
	uploadThreads  = 2
	cleanupTimeout = 5 * time.Second
)

// newS3 returns the bucket and the prefix in s3://BUCKET/PREFIX as a destination. The environment
// configures it, as it does other tools for S3:
//
//   - AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if there is one
//   - else AWS_PROFILE (default: default) in AWS_SHARED_CREDENTIALS_FILE (default:
//     ~/.aws/credentials)
//   - else the role of the machine, the container or the pod
//   - AWS_REGION or AWS_DEFAULT_REGION
//   - AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL: the address of another server than Amazon's, such
//     as https://s3.example.com. The name of the bucket is in the path then.
func newS3(to string, env func(string) string) (Destination, error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(to, scheme), "/")
	if bucket == "" || strings.ContainsAny(to, "?#@") {
		return nil, &ratelimit.FieldError{Field: "--to", Want: "s3://BUCKET/PREFIX, with the credentials in the environment"}
	}
	endpoint, secure, err := endpoint(env)
	if err != nil {
		return nil, err
	}
	creds, err := s3Credentials(env)
	if err != nil {
		return nil, err
	}
	region, lookup := firstOf(env, "AWS_REGION", "AWS_DEFAULT_REGION"), minio.BucketLookupAuto
	if endpoint != amazon {
		lookup = minio.BucketLookupPath
		if region == "" {
			region = "us-east-1" // what servers other than Amazon's expect if they have no regions
		}
	}
	client, err := minio.New(endpoint, &minio.Options{Creds: creds, Secure: secure, Region: region, BucketLookup: lookup})
	if err != nil {
		return nil, fmt.Errorf("S3: %w", err)
	}
	return &s3{client, bucket, strings.Trim(prefix, "/")}, nil
}

// amazon is the default endpoint.
const amazon = "s3.amazonaws.com"

// endpoint is the host of the server, and whether to use TLS.
func endpoint(env func(string) string) (host string, secure bool, err error) {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		text := env(name)
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https" {
			return "", false, &ratelimit.FieldError{Field: name, Want: "https:// or http:// with a host and, if need be, a port"}
		}
		return u.Host, u.Scheme == "https", nil
	}
	return amazon, true, nil
}

func firstOf(env func(string) string, names ...string) string {
	for _, name := range names {
		if value := env(name); value != "" {
			return value
		}
	}
	return ""
}

func (s *s3) String() string { return scheme + path.Join(s.bucket, s.prefix) }

func (s *s3) key(name string) string { return path.Join(s.prefix, name) }

// prepare checks the bucket, and removes unfinished uploads.
func (s *s3) prepare(ctx context.Context) error {
	there, err := s.client.BucketExists(ctx, s.bucket)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if !there {
		return &ratelimit.FieldError{Field: "--to", Value: s.String(), Want: "a bucket that exists, in the region of AWS_REGION"}
	}
	for upload := range s.client.ListIncompleteUploads(ctx, s.bucket, s.key(folder)+"/", true) {
		if upload.Err != nil {
			// The credentials need not allow this. What is left takes space and does no harm.
			return ctx.Err()
		}
		if err := s.client.RemoveIncompleteUpload(ctx, s.bucket, upload.Key); err != nil {
			return ctx.Err()
		}
	}
	return nil
}

// temporary makes a file of this machine.
func (s *s3) temporary(string) (*os.File, error) { return disappearing() }

func (s *s3) publish(ctx context.Context, f *os.File, name string, verify func(readableFile) error) error {
	local, err := fileSource(f)
	if err != nil {
		return err
	}
	_, err = s.client.PutObject(ctx, s.bucket, s.key(name), io.NewSectionReader(f, 0, local.size), local.size, minio.PutObjectOptions{
		ContentType: "application/vnd.apache.parquet",
		NumThreads:  uploadThreads,
	})
	if err != nil {
		s.cleanup(ctx, func(ctx context.Context) error {
			return s.client.RemoveIncompleteUpload(ctx, s.bucket, s.key(name))
		})
		return fmt.Errorf("uploading %s: %w", name, err)
	}
	back, err := s.open(ctx, name, true)
	if err != nil {
		return fmt.Errorf("reading %s back: %w", name, err)
	}
	defer back.Close()
	if err := verify(back); err != nil {
		s.cleanup(ctx, func(ctx context.Context) error { return s.remove(ctx, name) })
		return fmt.Errorf("%s was read back: %w", name, err)
	}
	return nil
}

// cleanup does something also after the run was interrupted. If it fails, the next run does it,
// or finds that the file is not what it must be.
func (s *s3) cleanup(ctx context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = do(ctx)
}

func (s *s3) list(ctx context.Context, prefix string) ([]string, error) {
	top := ""
	if s.prefix != "" {
		top = s.prefix + "/"
	}
	var names []string
	for object := range s.client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: top + prefix, Recursive: true}) {
		if object.Err != nil {
			return nil, object.Err
		}
		names = append(names, strings.TrimPrefix(object.Key, top))
	}
	return names, ctx.Err()
}

func (s *s3) remove(ctx context.Context, name string) error {
	return s.client.RemoveObject(ctx, s.bucket, s.key(name), minio.RemoveObjectOptions{})
}

func (s *s3) open(ctx context.Context, name string, whole bool) (sourceCloser, error) {
	object, err := s.client.GetObject(ctx, s.bucket, s.key(name), minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	if !whole {
		info, err := object.Stat()
		if err != nil {
			_ = object.Close() // the first error says more
			return nil, err
		}
		return remote{object, info.Size}, nil
	}
	defer object.Close()
	f, err := disappearing()
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(f, object)
	var local file
	if err == nil {
		local, err = fileSource(f)
	}
	if err != nil {
		return nil, errors.Join(err, closeTemporary(f))
	}
	return temporaryFile{local}, nil
}

// remote is an object of which parts are read.
type remote struct {
	*minio.Object
	size int64
}

func (r remote) Size() int64 { return r.size }

// temporaryFile is removed when it is closed.
type temporaryFile struct{ file }

func (t temporaryFile) Close() error { return closeTemporary(t.File) }
