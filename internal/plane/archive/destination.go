package archive

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Destination is where files are: a folder or a bucket of S3. Names of files are relative to it
// and have slashes.
type Destination interface {
	// String is the destination for people. It has no secret.
	String() string

	// prepare checks that the destination is there, and removes what a run left that ended
	// before its file was complete.
	prepare(ctx context.Context) error
	// temporary makes the file in which the file of that name is written at first.
	temporary(name string) (*os.File, error)
	// publish gives the temporary file its name, as a whole. It replaces a file of that
	// name. Then the file is what verify accepts, or publish returns an error and removes it.
	publish(ctx context.Context, f *os.File, name string, verify func(readableFile) error) error
	// list returns the names that begin with prefix, which has the folder at least.
	list(ctx context.Context, prefix string) ([]string, error)
	// remove removes a file.
	remove(ctx context.Context, name string) error
	// open opens a file. A file that is read as a whole may be copied to this machine first.
	open(ctx context.Context, name string, whole bool) (sourceCloser, error)
}

type sourceCloser interface {
	readableFile
	io.Closer
}

const scheme = "s3://"

// NewDestination returns the destination that a text names: s3://bucket/prefix, or a folder. A
// folder must exist: a file system that is not mounted should not fill the disk below. The
// environment has the credentials for S3, as S3 says. No error contains them.
func NewDestination(to string) (Destination, error) {
	switch {
	case strings.HasPrefix(to, scheme):
		return newS3(to, os.Getenv)
	case to == "" || strings.Contains(to, "://"):
		return nil, &ratelimit.FieldError{Field: "--to", Want: "s3://BUCKET/PREFIX or a folder"}
	}
	return newDirectory(to)
}

// dayLength is the length of a day in UTC.
const dayLength = 24 * time.Hour

func dayName(day time.Time) string { return day.Format(time.DateOnly) }

const extension = ".parquet"

// folder is the one folder of an archive.
const folder = "audit"

// fileOf returns the name of the nth file of a day, from 1.
func fileOf(day time.Time, n int) string {
	number := ""
	if n > 1 {
		number = "-" + strconv.Itoa(n)
	}
	return path.Join(folder, day.Format("2006/01"), dayName(day)+number+extension)
}

// numberOf returns the number in a name that fileOf makes. ok is false for any other name.
func numberOf(name string) (n int, ok bool) {
	base := strings.TrimSuffix(path.Base(name), extension)
	if len(base) < len(time.DateOnly) {
		return 0, false
	}
	day, err := time.Parse(time.DateOnly, base[:len(time.DateOnly)])
	n = 1
	if number := base[len(time.DateOnly):]; err == nil && number != "" {
		n, err = strconv.Atoi(strings.TrimPrefix(number, "-"))
	}
	return n, err == nil && fileOf(day, n) == name
}

// filesOf returns the files of a day that are there, in the order of their numbers, and the
// first free number.
func filesOf(ctx context.Context, d Destination, day time.Time) (names []string, free int, err error) {
	all, err := d.list(ctx, strings.TrimSuffix(fileOf(day, 1), extension))
	if err != nil {
		return nil, 0, fmt.Errorf("listing the files of %s: %w", dayName(day), err)
	}
	numbers := make([]int, 0, len(all))
	for _, name := range all {
		if n, ok := numberOf(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	free = 1
	for _, n := range numbers {
		names = append(names, fileOf(day, n))
		free = n + 1
	}
	return names, free, nil
}

// file is a file of this machine as a source.
type file struct {
	*os.File
	size int64
}

func (f file) Size() int64 { return f.size }

func fileSource(f *os.File) (file, error) {
	info, err := f.Stat()
	if err != nil {
		return file{}, err
	}
	return file{f, info.Size()}, nil
}
