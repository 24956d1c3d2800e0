package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
)

// folder is a folder that its leash removes when this process has ended. It holds the leash
// so that the garbage collector does not end it.
type folder struct {
	path  string
	leash *leash.Leash
}

// binaries is the folder of what Build makes.
var binaries = sync.OnceValues(func() (folder, error) {
	path, err := os.MkdirTemp("", "pgrl-bin-")
	if err != nil {
		return folder{}, err
	}
	l, err := leash.New(syscall.SIGTERM, path)
	if err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(path))
	}
	return folder{path, l}, nil
})

// built are the programs that Build has made.
var built = struct {
	sync.Mutex
	programs map[string]string
}{programs: map[string]string{}}

// caddyFlags are the flags of `make build`, which are those of xcaddy, besides
// the flags that Compile always uses.
var caddyFlags = []string{"-tags", "nobadger,nomysql,nopgx"}

// Caddy makes the Caddy of `make build`, once a test process, and returns its
// path. root is the repository.
func Caddy(t testing.TB, root string) string {
	t.Helper()
	return Build(t, filepath.Join(root, "xcaddy"), ".", caddyFlags...)
}

// CompileCaddy makes the program out from a module, as `make build` makes Caddy from xcaddy.
func CompileCaddy(ctx context.Context, module, out string) error {
	return Compile(ctx, []string{"CGO_ENABLED=0"}, module, ".", out, caddyFlags...)
}

// Build makes a program, once a test process, and returns its path. module is
// the folder of its go.mod, pkg its package, as "./server"; flags go before it.
func Build(t testing.TB, module, pkg string, flags ...string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	built.Lock()
	defer built.Unlock()
	id := fmt.Sprint(module, " ", pkg, " ", flags)
	if path, ok := built.programs[id]; ok {
		return path
	}
	path := filepath.Join(dir.path, fmt.Sprintf("%d-%s", len(built.programs), filepath.Base(filepath.Join(module, pkg))))
	if err := Compile(context.Background(), []string{"CGO_ENABLED=0"}, module, pkg, path, flags...); err != nil {
		t.Fatal(err)
	}
	built.programs[id] = path
	return path
}

// Compile builds the program out, with env added to this process's environment. It uses the
// options of `make build`, so that both share compiled packages, and no debugging
// information, which takes long to link.
func Compile(ctx context.Context, env []string, module, pkg, out string, flags ...string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), env...)
	// An interrupted go command ends the compilers that it has started.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", pkg, module, err, text)
	}
	return nil
}
