// Package npm fetches what tests need from npm's registry: Postgres servers of
// several versions, and a driver for a Node program. Which registry that is,
// npm's own settings say.
package npm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// ErrMissing is returned by Require if the machine has no npm and none can be installed. It says in one line
// what to do.
var ErrMissing = errors.New("no node and npm on this machine: install them (Debian, Ubuntu: apt-get " +
	"install nodejs npm; macOS: brew install node)")

// Require makes sure that node and npm are on PATH: it installs Debian's
// packages where they are not, as root or where sudo asks for no password.
func Require(ctx context.Context) error {
	err := install.Debian(ctx, os.Stderr, "node and npm", found, "nodejs", "npm")
	if errors.Is(err, install.ErrMayNot) {
		return ErrMissing
	}
	if err != nil {
		return fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	return nil
}

func found() bool {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return true
}

// Pack downloads a package, such as "name@1.2.3", into dir and returns the path
// of its archive. npm has compared that with the registry's checksum.
func Pack(ctx context.Context, spec, dir string) (string, error) {
	out, err := run(ctx, dir, "pack", "--json", "--pack-destination", dir, spec)
	if err != nil {
		return "", err
	}
	var packed []struct{ Filename string }
	if err := json.Unmarshal(out, &packed); err != nil {
		return "", fmt.Errorf("npm pack %s says %q: %w", spec, out, err)
	}
	if len(packed) != 1 {
		return "", fmt.Errorf("npm pack %s says %q, must name one file", spec, out)
	}
	// Some releases of npm name the archive of a scope with its slash.
	name := strings.ReplaceAll(strings.TrimPrefix(packed[0].Filename, "@"), "/", "-")
	return filepath.Join(dir, name), nil
}

// Install installs what dir's package.json asks for into dir/node_modules. It
// runs no script of a package and writes no lock file.
func Install(ctx context.Context, dir string) error {
	_, err := run(ctx, dir, "install", "--no-package-lock", "--ignore-scripts", "--prefer-offline",
		"--no-audit", "--no-fund")
	return err
}

// Modules returns the node_modules with what the package.json manifest asks for. They stay in the folder
// cache for the next process, until the manifest changes.
func Modules(ctx context.Context, manifest, cache string) (string, error) {
	if err := Require(ctx); err != nil {
		return "", err
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	folder := filepath.Join(cache, hex.EncodeToString(sum[:8]))
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
	if err := os.WriteFile(filepath.Join(unfinished, "package.json"), text, 0o644); err != nil {
		return "", err
	}
	if err := Install(ctx, unfinished); err != nil {
		return "", err
	}
	if err := os.Rename(unfinished, folder); err != nil {
		// Another process may have been faster.
		if _, there := os.Stat(modules); there != nil {
			return "", err
		}
	}
	return modules, nil
}

// run runs npm in dir and returns what it prints.
func run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	if err := Require(ctx); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "npm", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "npm_config_update_notifier=false")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("npm %s: %w: %s", strings.Join(args, " "), err, complaint(&stderr))
	}
	return stdout.Bytes(), nil
}

// complaint returns what npm says of its failure, without its hints.
func complaint(stderr io.Reader) string {
	text, _ := io.ReadAll(stderr)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line, ok := strings.CutPrefix(strings.TrimSpace(line), "npm error "); ok && len(lines) < 3 {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		return all[len(all)-1]
	}
	return strings.Join(lines, "; ")
}
