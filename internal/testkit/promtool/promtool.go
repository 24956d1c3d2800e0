// Package promtool finds Prometheus's promtool, which tests use to check metrics and alert rules.
package promtool

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// script takes promtool out of Debian's package, into the folder $0. It does not install the package, because
// the installation would start a server. Without a list of packages, it needs root, or sudo without a
// password.
//
//go:embed promtool.sh
var script string

// Find returns the path of promtool, from PATH or from Debian's package prometheus, which it downloads once
// for each account.
func Find(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("promtool"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	folder := filepath.Join(cache, "pg-ratelimit")
	if err = errors.Join(err, os.MkdirAll(folder, 0o700)); err != nil {
		return "", fmt.Errorf("promtool: %w", err)
	}
	path := filepath.Join(folder, "promtool")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Fprintln(os.Stderr, "There is no promtool on this machine. Downloading Debian's package "+
		"prometheus ...")
	if out, err := exec.CommandContext(ctx, "sh", "-c", script, folder).CombinedOutput(); err != nil {
		return "", fmt.Errorf("no promtool on this machine: install it (Debian, Ubuntu: apt-get install "+
			"prometheus; macOS: brew install prometheus) (%w: %s)", err, out)
	}
	return path, nil
}
