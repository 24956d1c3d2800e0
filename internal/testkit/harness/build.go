package harness

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// built holds the paths of the programs that Build has returned.
var built = struct {
	sync.Mutex
	programs map[string]string
}{programs: map[string]string{}}

// caddyFlags are the flags that `make build` and xcaddy add to those of Compile.
var caddyFlags = []string{"-tags", "nobadger,nomysql,nopgx"}

// Caddy builds the Caddy of `make build`, and returns its path. root is the folder of the repository. flags
// are further flags of go build.
func Caddy(t testing.TB, root string, flags ...string) string {
	t.Helper()
	return Build(t, filepath.Join(root, "xcaddy"), ".", append(flags, caddyFlags...)...)
}

// CompileCaddy builds the module in the folder module with the flags of `make build`, and writes the program
// to the path target.
func CompileCaddy(ctx context.Context, module, target string) error {
	return Compile(ctx, nil, module, ".", target, caddyFlags...)
}

// Build builds a program and returns its path. module is the folder of its go.mod, and pkg its package, such
// as "./server". flags are further flags of go build. Build keeps the program in the module's folder .cache,
// under a name that depends on its sources, for later calls in any process.
func Build(t testing.TB, module, pkg string, flags ...string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	id := fmt.Sprint(module, " ", pkg, " ", flags)
	if path, ok := built.programs[id]; ok {
		return path
	}
	path, err := findOrBuild(t.Context(), module, pkg, flags)
	if err != nil {
		t.Fatal(err)
	}
	built.programs[id] = path
	return path
}

// findOrBuild is like Build, but returns an error.
func findOrBuild(ctx context.Context, module, pkg string, flags []string) (string, error) {
	// The go command identifies a package by its sources.
	args := append(append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.BuildID}}"},
		buildFlags...), flags...)
	cmd := goCommand(ctx, module, append(args, pkg)...)
	list, err := cmd.Output()
	if err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			err = fmt.Errorf("%w: %s", err, ended.Stderr)
		}
		return "", fmt.Errorf("go list %s in %s: %w", pkg, module, err)
	}
	folder, err := filepath.Abs(filepath.Join(module, ".cache"))
	if err != nil {
		return "", err
	}
	name := filepath.Join(folder, "built-"+filepath.Base(filepath.Join(module, pkg))+"-")
	path := fmt.Sprintf("%s%x", name, sha256.Sum256(append(list, runtime.Version()...)))
	err = buildOnce(ctx, path, func(part string) error {
		older, err := filepath.Glob(name + "*")
		for _, file := range older {
			if info, err := os.Stat(file); err == nil && time.Since(info.ModTime()) > keepFor {
				_ = os.Remove(file)
			}
		}
		return errors.Join(err, Compile(ctx, nil, module, pkg, part, flags...))
	})
	return path, err
}

// buildOnce calls compile to build the program at a path, unless the program exists. While it is built, other
// processes that need it wait. compile writes to another path, so that an interrupted build leaves no
// program.
func buildOnce(ctx context.Context, path string, compile func(part string) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	unlock, err := install.Lock(ctx, filepath.Join(filepath.Dir(path), "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return nil
	}
	if err := compile(path + ".part"); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// keepFor is the time for which a program is kept after its last use.
const keepFor = 12 * time.Hour

// buildFlags are flags with which the packages that `make build` has compiled are used again.
var buildFlags = []string{"-trimpath", "-buildvcs=false"}

// goCommand returns a go command in a module.
func goCommand(ctx context.Context, module string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	// An interrupted go command ends the compilers that it has started.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Compile builds a program at the path target, without cgo, and without debugging information, which takes
// long to link. It adds env to this process's environment.
func Compile(ctx context.Context, env []string, module, pkg, target string, flags ...string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	args := append(append([]string{"build", "-ldflags=-s -w", "-o", target}, buildFlags...), flags...)
	cmd := goCommand(ctx, module, append(args, pkg)...)
	cmd.Env = append(cmd.Env, env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", pkg, module, err, output)
	}
	return nil
}
