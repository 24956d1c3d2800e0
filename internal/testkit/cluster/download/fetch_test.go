package download

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// fakeNpm puts an npm on PATH that packs an archive.
func fakeNpm(t *testing.T, packed string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"archive": packed,
		"node":    "#!/bin/sh\n",
		"npm":     "#!/bin/sh\ncp '" + dir + "/archive' \"$4/a.tgz\"\necho '[{\"filename\":\"a.tgz\"}]'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestFetchComparesTheChecksum(t *testing.T) {
	fakeNpm(t, "an archive")
	platform := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if platform == "" {
		t.Fatal("there are no packages for this machine")
	}
	cache := t.TempDir()
	r := Release{"15", "15.0.0", map[string]string{platform: checksum([]byte("another"))}}
	if _, err := r.Fetch(context.Background(), cache, io.Discard); err == nil || !strings.Contains(err.Error(), "SHA-512") {
		t.Errorf("%v, want a complaint about the SHA-512", err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("the cache has %v (%v), want nothing", left, err)
	}
}
