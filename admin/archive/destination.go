package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Destination stores files in a folder or an S3 bucket. The name of a file is its path below the destination,
// with slashes.
type Destination interface {
	// check returns an error if the destination does not exist.
	check(ctx context.Context) error
	// list returns all names of files that begin with prefix.
	list(ctx context.Context, prefix string) ([]string, error)
	// open opens a stored file for reading. The caller closes it.
	open(ctx context.Context, name string) (source, error)
	// temporary creates a local file for the rows that store later stores under name. The caller closes and
	// removes the file, whether or not store succeeds.
	temporary(name string) (*os.File, error)
	// store stores the temporary file under name, atomically and durably. The caller ensures that no file has
	// the name yet: a folder would return fs.ErrExist, and a bucket would replace the file.
	store(ctx context.Context, f *os.File, name string) error
}

// source is an open file.
type source interface {
	io.ReaderAt
	io.Seeker
	io.Closer
}

const scheme = "s3://"

// NewDestination returns the destination that target names: s3://BUCKET/PREFIX or a folder, which must exist.
// NewDestination does not create a missing folder: if the file system of the folder is not mounted, the files
// would fill the disk of the mount point instead. No error contains credentials.
func NewDestination(target string) (Destination, error) {
	switch {
	case strings.HasPrefix(target, scheme):
		return newS3(target)
	case target == "" || strings.Contains(target, "://"):
		return nil, &ratelimit.FieldError{Field: "--to", Want: "s3://BUCKET/PREFIX or a folder"}
	}
	root, err := filepath.Abs(target)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	return directory(root), directory(root).check(context.Background())
}

// directory is a Destination in a folder.
type directory string

func (d directory) path(name string) string {
	return filepath.Join(string(d), filepath.FromSlash(name))
}

func (d directory) check(context.Context) error {
	if info, err := os.Stat(string(d)); err != nil || !info.IsDir() {
		return &ratelimit.FieldError{Field: "--to", Value: string(d),
			Want: "s3://BUCKET/PREFIX or a folder that exists"}
	}
	return nil
}

func (d directory) list(_ context.Context, prefix string) ([]string, error) {
	entries, err := os.ReadDir(d.path(path.Dir(prefix)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name := path.Join(path.Dir(prefix), e.Name()); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, err
}

func (d directory) open(_ context.Context, name string) (source, error) {
	return os.Open(d.path(name))
}

func (d directory) temporary(name string) (*os.File, error) {
	p := d.path(name)
	if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
		return nil, err
	}
	return os.OpenFile(p+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (d directory) store(_ context.Context, f *os.File, name string) error {
	if _, err := os.Lstat(d.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fs.ErrExist, err)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), d.path(name)); err != nil || runtime.GOOS == "windows" {
		return err // Windows cannot sync a folder
	}
	// Sync every folder on the path, because each may be new, and so a new entry in its parent.
	for folder := path.Dir(name); ; folder = path.Dir(folder) {
		opened, err := os.Open(d.path(folder))
		if err == nil {
			err = errors.Join(opened.Sync(), opened.Close())
		}
		if err != nil || folder == "." {
			return err
		}
	}
}
