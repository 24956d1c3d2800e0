// Package promtool finds Prometheus's promtool, which tests use to check metrics and alert rules.
package promtool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrMissing is returned by Find if the machine has no promtool and none can be downloaded. Its message
// explains the remedy in one line.
var ErrMissing = errors.New("no promtool on this machine: install it (Debian, Ubuntu: apt-get install " +
	"prometheus; macOS: brew install prometheus)")

// Find returns the path of promtool, from PATH or from Debian's package prometheus. Find downloads the
// package once for each account, and does not install it, because the installation would start a server. The
// download needs apt-get and dpkg-deb. If apt-get has no list of packages yet, the download also needs root,
// or sudo without a password.
func Find(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("promtool"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("promtool: %w", err)
	}
	return cached(filepath.Join(cache, "pg-ratelimit"), func(dir string) error { return extract(ctx, dir) })
}

// cached returns the path of promtool in a folder. If promtool is missing, cached calls f to create it in a
// temporary folder, and then moves it, so that concurrent processes never see an incomplete file.
func cached(folder string, f func(dir string) error) (path string, err error) {
	path = filepath.Join(folder, "promtool")
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("promtool: %w", err)
	}
	dir, err := os.MkdirTemp(folder, "download-")
	if err != nil {
		return "", fmt.Errorf("promtool: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := f(dir); err != nil {
		return "", fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	return path, os.Rename(filepath.Join(dir, "promtool"), path)
}

// extract downloads Debian's package into a folder and takes promtool out of it.
func extract(ctx context.Context, dir string) error {
	fmt.Fprintln(os.Stderr, "pg-ratelimit: no promtool on this machine: downloading Debian's package "+
		"prometheus, without installing it")
	download := []string{"apt-get", "download", "-qq", "prometheus"}
	if err := run(ctx, dir, download...); err != nil {
		update := []string{"apt-get", "update", "-qq"}
		if os.Geteuid() != 0 {
			update = append([]string{"sudo", "-n"}, update...)
		}
		if err := run(ctx, dir, update...); err != nil {
			return err
		}
		if err := run(ctx, dir, download...); err != nil {
			return err
		}
	}
	packages, err := filepath.Glob(filepath.Join(dir, "prometheus_*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("apt-get download made %d packages", len(packages))
	}
	if err := run(ctx, dir, "dpkg-deb", "-x", packages[0], "files"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "files", "usr", "bin", "promtool"), filepath.Join(dir, "promtool"))
}

// run runs a program in a folder.
func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
