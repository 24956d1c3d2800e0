package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// build makes the proxies that the rows need.
func (b *bench) build(ctx context.Context) error {
	cache := filepath.Join(b.root, "integration", ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	if b.needs(onCaddy) {
		b.caddy = filepath.Join(cache, "caddy")
		b.progress("building Caddy; the first time this takes some minutes")
		if err := goBuild(ctx, b.root, "./xcaddy", b.caddy, "CGO_ENABLED=0"); err != nil {
			return fmt.Errorf("building Caddy: %w", err)
		}
	}
	if b.needs(onTraefik) {
		var err error
		if b.traefik, err = b.buildTraefik(ctx, cache); err != nil {
			return fmt.Errorf("building Traefik: %w", err)
		}
	}
	return nil
}

// buildTraefik builds Traefik unless the tests, or an earlier run, have put it
// into the cache. The name says what it was built from, as the tests have it.
func (b *bench) buildTraefik(ctx context.Context, cache string) (string, error) {
	module := filepath.Join(b.root, "integration", "traefik")
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	path := filepath.Join(cache, fmt.Sprintf("traefik-%x", sum.Sum(nil)[:8]))
	unlock, err := lockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	b.progress("building Traefik from the module proxy; the first time this takes some minutes")
	part := path + ".part"
	if err := goBuild(ctx, module, "github.com/traefik/traefik/v3/cmd/traefik", part, "GOFLAGS=", "GOWORK=off"); err != nil {
		return "", err
	}
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
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

func goBuild(ctx context.Context, dir, pkg, out string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	// Asked like this, go ends the compilers that it has started.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// moduleVersion is the version of a module in a Go program.
func moduleVersion(program, module string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version
		}
	}
	return "unknown"
}
