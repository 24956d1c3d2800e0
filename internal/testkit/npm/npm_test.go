package npm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script puts a program into dir.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// onlyPath makes dir the whole PATH, with a sudo that runs what it is given.
func onlyPath(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	script(t, dir, "sudo", `shift; PATH=$PATH:/usr/bin:/bin exec "$@"`)
	script(t, dir, "env", `exec /usr/bin/env "$@"`)
	return dir
}

func TestRequireFindsThem(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "npm", "")
	script(t, dir, "node", "")
	script(t, dir, "apt-get", "exit 1") // not to be called
	if err := Require(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestRequireWithoutApt(t *testing.T) {
	onlyPath(t)
	if err := Require(context.Background()); !errors.Is(err, ErrMissing) {
		t.Errorf("%v, want %v", err, ErrMissing)
	}
}

func TestRequireInstalls(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "apt-get", `
case "$*" in
*install*nodejs*npm) cd "`+dir+`" && for p in node npm; do echo '#!/bin/sh' >$p && /bin/chmod +x $p; done ;;
esac`)
	if err := Require(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestRequireTellsWhyItCouldNot(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "apt-get", "echo the mirror is down >&2; exit 100")
	err := Require(context.Background())
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "the mirror is down") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line with what apt-get said", err)
	}
}

func TestPackAndInstallRunNpm(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "node", "")
	script(t, dir, "npm", `
case "$*" in
"pack --json --pack-destination $PWD @scope/name@1.2.3") echo '[{"filename": "@scope/name-1.2.3.tgz"}]' ;;
"pack "*) echo '[]' ;;
"install --no-package-lock --ignore-scripts "*) echo x >installed ;;
*) echo "npm error not: $*" >&2; exit 1 ;;
esac`)
	ctx, to := context.Background(), t.TempDir()
	path, err := Pack(ctx, "@scope/name@1.2.3", to)
	if want := filepath.Join(to, "scope-name-1.2.3.tgz"); err != nil || path != want {
		t.Errorf("Pack: %q, %v; want %q", path, err, want)
	}
	if _, err := Pack(ctx, "other@1", to); err == nil {
		t.Error("Pack: no error where npm names no file")
	}
	if err := Install(ctx, to); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(to, "installed")); err != nil {
		t.Error(err)
	}
}

func TestModulesAreInstalledOnce(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "node", "")
	script(t, dir, "npm", `/bin/mkdir node_modules && echo x >>"`+dir+`/installed"`)
	manifest, cache := filepath.Join(t.TempDir(), "package.json"), t.TempDir()
	if err := os.WriteFile(manifest, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		modules, err := Modules(t.Context(), manifest, cache)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(modules); err != nil {
			t.Error(err)
		}
	}
	if runs, err := os.ReadFile(filepath.Join(dir, "installed")); string(runs) != "x\n" {
		t.Errorf("npm has installed %q, %v; want once", runs, err)
	}
}

func TestFailuresAreOneLine(t *testing.T) {
	dir := onlyPath(t)
	script(t, dir, "node", "")
	script(t, dir, "npm", `echo 'npm warn something' >&2
echo 'npm error code ETARGET' >&2
echo 'npm error notarget No matching version found' >&2
exit 1`)
	err := Install(context.Background(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "code ETARGET; notarget No matching version found") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line with what npm said", err)
	}
}
