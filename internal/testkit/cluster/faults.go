package cluster

import (
	_ "embed" // faults.c
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed faults/faults.c
var faultsSource []byte

// Faults are a wrong clock and a full disk of the servers with its Env.
type Faults struct {
	Env  []string // for Options
	file *os.File
}

// NewFaults compiles the library that makes faults, and returns Faults without one. It needs a C compiler.
func NewFaults(t testing.TB) *Faults {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "faults-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the server's account reads the library
		t.Fatal(err)
	}
	source, library := filepath.Join(dir, "faults.c"), filepath.Join(dir, "faults.so")
	if err := os.WriteFile(source, faultsSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", library, source).
		CombinedOutput(); err != nil {
		t.Fatalf("compiling faults.c: %v: %s", err, out)
	}
	name := filepath.Join(dir, "faults")
	f := &Faults{Env: []string{"LD_PRELOAD=" + library, "SERVER_FAULTS=" + name}}
	if f.file, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err == nil {
		err = f.Set(0, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.file.Close() })
	return f
}

// Set sets by how much the clocks of the servers are late, and whether their disks are full.
func (f *Faults) Set(late time.Duration, full bool) error {
	text := binary.NativeEndian.AppendUint64(nil, uint64(late/time.Second))
	flag := uint64(0)
	if full {
		flag = 1
	}
	_, err := f.file.WriteAt(binary.NativeEndian.AppendUint64(text, flag), 0)
	return err
}
