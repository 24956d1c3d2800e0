package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// traefikProgram is a real Traefik, made from the module in the folder traefik
// on first use and kept in .cache for later runs.
func traefikProgram(t testing.TB) string {
	t.Helper()
	path, err := builtTraefik()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var builtTraefik = sync.OnceValues(buildTraefik)

// buildTraefik builds what is not in the cache yet. The name says what it was
// built from, so that another version is built anew.
func buildTraefik() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("traefik", name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	cache, err := filepath.Abs(".cache")
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "traefik-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	fmt.Fprintln(os.Stderr, "Building Traefik from the module proxy; the first time this takes some minutes ...")
	began := time.Now()
	part := path + ".part"
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", part, "github.com/traefik/traefik/v3/cmd/traefik")
	cmd.Dir = "traefik"
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building Traefik: %w\n%s", err, out)
	}
	fmt.Fprintln(os.Stderr, "Built Traefik in", time.Since(began).Round(time.Second))
	return path, os.Rename(part, path)
}

// lockFile waits for a lock that one process holds at a time.
func lockFile(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR { //nolint:errorlint // it is never wrapped
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}
