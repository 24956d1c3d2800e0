//go:build release

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// xcaddy runs a command of the documentation with a GOPROXY, and returns the path of the Caddy that it
// builds. The proxy that is configured on this machine replaces the public proxy.
func xcaddy(t *testing.T, command, goproxy string) string {
	t.Helper()
	goproxy = strings.Replace(goproxy, "https://proxy.golang.org",
		strings.ReplaceAll(output(t, "go", "env", "GOPROXY"), ",direct", ""), 1)
	cmd := exec.Command(output(t, "go", "tool", "-n", "xcaddy"), strings.Fields(command)[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOPROXY="+goproxy, "GONOSUMDB="+modulePath,
		"GOFLAGS=-modcacherw -buildvcs=false", "TMPDIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(cmd.Dir, "caddy")
}

// documentedCommands returns the commands of the documentation that run xcaddy: one with a clone and its
// GOPROXY, and one without.
func documentedCommands(t *testing.T) (goproxy, ofClone, ofRelease string) {
	t.Helper()
	text := readFile(t, filepath.Join(root, "docs", "caddy.md"))
	clone := regexp.MustCompile(`(?m)^\$ GOPROXY='(\S+)' (xcaddy .*)$`).FindStringSubmatch(text)
	release := regexp.MustCompile(`(?m)^\$ (xcaddy .*?)\s+#.*$`).FindStringSubmatch(text)
	if clone == nil || release == nil {
		t.Fatalf("docs/caddy.md has the commands %q and %q, want both", clone, release)
	}
	return clone[1], clone[2], release[1]
}

// checkModule checks that a Caddy has the handler, in a version of the module.
func checkModule(t *testing.T, caddy, version string) {
	t.Helper()
	out, err := exec.Command(caddy, "list-modules", "--versions").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\nhttp.handlers.pg_ratelimit "+version+"\n") {
		t.Errorf("caddy list-modules --versions: %v, want the handler in version %s\n%s", err, version, out)
	}
}

// The documented command of xcaddy builds a Caddy with the module of a clone and its commands.
func TestXcaddyBuildsAClone(t *testing.T) {
	goproxy, command, _ := documentedCommands(t)
	caddy := xcaddy(t, replaceAll(t, command, "/path/to/clone", output(t, "git", "rev-parse",
		"--show-toplevel")), goproxy)
	// Go gives this version to a module that is replaced, unless another module requires a version.
	checkModule(t, caddy, "v0.0.0-00010101000000-000000000000")
	out, _ := exec.Command(caddy, "pg-ratelimit", "rules", "list", "--dsn", "memory").CombinedOutput()
	if want := `"memory": must be a Postgres URL`; !strings.Contains(string(out), want) {
		t.Errorf("the command prints %s, want %s", out, want)
	}
}

// The documented command of xcaddy builds a Caddy with the released module. The module proxy of this test has
// the module, as Go's proxy has it after the release. The version names the commit, because Go caches the
// files of a version.
func TestXcaddyBuildsTheRelease(t *testing.T) {
	released := module.Version{Path: modulePath,
		Version: host.Version + "-g" + output(t, "git", "-C", root, "rev-parse", "--short=12", "HEAD")}
	proxy := t.TempDir()
	folder := filepath.Join(proxy, modulePath, "@v")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(folder, released.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone") // which has the files of the commit alone
	output(t, "git", "clone", "--quiet", root, clone)
	if err := zip.CreateFromDir(file, released, clone); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	text := readFile(t, filepath.Join(root, "go.mod"))
	writeFile(t, filepath.Join(folder, released.Version+".mod"), text)
	writeFile(t, filepath.Join(folder, released.Version+".info"), `{"Version": "`+released.Version+`"}`)
	writeFile(t, filepath.Join(folder, "list"), released.Version+"\n")
	// Nothing of this version may stay in the cache of modules: it is not the release.
	t.Cleanup(func() {
		dir := output(t, "go", "env", "GOMODCACHE")
		for _, path := range []string{filepath.Join(dir, modulePath+"@"+released.Version),
			filepath.Join(dir, "cache", "download", modulePath)} {
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	})
	goproxy, _, command := documentedCommands(t)
	checkModule(t, xcaddy(t, command, "file://"+proxy+"|"+goproxy), released.Version)
}
