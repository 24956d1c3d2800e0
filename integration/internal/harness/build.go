package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster/leash"
)

// folder is a folder that its leash removes when this process is gone. A leash
// that nobody held would be let go by the garbage collector.
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

// Build makes a program, once a test process, and returns its path. module is
// the folder of its go.mod, pkg its package, as "./xcaddy"; flags go before it.
// It compiles as `make build` does, so that either finds what the other has
// compiled, but links no debugging information, which takes long.
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
	path := filepath.Join(dir.path, fmt.Sprintf("%d-%s", len(built.programs), filepath.Base(pkg)))
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path}, flags...)
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s in %s: %v\n%s", pkg, module, err, out)
	}
	built.programs[id] = path
	return path
}
