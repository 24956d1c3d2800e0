package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// directory is a folder as a destination.
type directory struct{ root string }

const temporaryExtension = ".tmp"

func newDirectory(to string) (Destination, error) {
	info, err := os.Stat(to)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, &ratelimit.FieldError{Field: "--to", Value: to, Want: "s3://BUCKET/PREFIX or a folder that exists"}
	}
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	root, err := filepath.Abs(to)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	return &directory{root}, nil
}

func (d *directory) String() string { return d.root }

func (d *directory) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

// prepare removes the temporary files that a run left that was killed.
func (d *directory) prepare(ctx context.Context) error {
	names, err := d.list(ctx, folder+"/")
	if err != nil {
		return err
	}
	for _, name := range names {
		of, isTemporary := strings.CutSuffix(name, temporaryExtension)
		if _, ok := numberOf(of); !isTemporary || !ok {
			continue
		}
		if err := d.remove(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (d *directory) temporary(name string) (*os.File, error) {
	p := d.path(name)
	if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
		return nil, err
	}
	return os.OpenFile(p+temporaryExtension, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
}

// publish checks the temporary file, so that a file with its final name was always checked.
func (d *directory) publish(_ context.Context, f *os.File, name string, verify func(readableFile) error) error {
	if err := f.Sync(); err != nil {
		return err
	}
	written, err := fileSource(f)
	if err != nil {
		return err
	}
	if err := verify(written); err != nil {
		return fmt.Errorf("%s was read back: %w", f.Name(), err)
	}
	if err := os.Rename(f.Name(), d.path(name)); err != nil {
		return err
	}
	// Each folder may be new, and is an entry of the one above.
	for folder := path.Dir(name); ; folder = path.Dir(folder) {
		if err := syncFolder(d.path(folder)); err != nil {
			return err
		}
		if folder == "." {
			return nil
		}
	}
}

// syncFolder waits until the entries of a folder are on the disk. Windows cannot do that.
func syncFolder(folder string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *directory) list(_ context.Context, prefix string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(d.path(path.Dir(prefix)), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(d.root, p)
		if name = filepath.ToSlash(name); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return names, err
}

func (d *directory) remove(_ context.Context, name string) error { return os.Remove(d.path(name)) }

func (d *directory) open(_ context.Context, name string, _ bool) (sourceCloser, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	opened, err := fileSource(f)
	if err != nil {
		_ = f.Close() // the first error says more
		return nil, err
	}
	return opened, nil
}
