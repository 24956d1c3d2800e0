package promtool

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPromtoolRuns: what Find returns is promtool.
func TestPromtoolRuns(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	path, err := Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "promtool, version ") {
		t.Errorf("%s --version: %v: %s", path, err, said)
	}
}

// TestADownloadIsMadeOnce, and one that fails leaves nothing behind.
func TestADownloadIsMadeOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cache")
	broken := errors.New("no network")
	if _, err := cached(folder, func(string) error { return broken }); !errors.Is(err, ErrMissing) || !errors.Is(err, broken) {
		t.Errorf("a download that fails: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("a download that failed has left %v, %v", left, err)
	}
	downloads := 0
	for range 2 {
		path, err := cached(folder, func(dir string) error {
			downloads++
			return os.WriteFile(filepath.Join(dir, "promtool"), []byte("#!/bin/sh\n"), 0o700)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(path).Run(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 || downloads != 1 {
		t.Errorf("%d downloads, and %v, %v in the folder; want 1 and promtool", downloads, left, err)
	}
}
