//go:build release

package deploy

import (
	"archive/zip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// Two clones build the same archives of this platform. Their checksums are right, their programs run in a
// root without any other file, Traefik loads the plugin, and they contain the licenses, the list of modules,
// the SQL and the example.
func TestArchivesAreTheSameBytes(t *testing.T) {
	var built []string
	for range 2 {
		clone, out := filepath.Join(t.TempDir(), "clone"), t.TempDir()
		output(t, "git", "clone", "--quiet", root, clone)
		output(t, "go", "run", "-C", clone, "./internal/release", "-platforms",
			runtime.GOOS+"/"+runtime.GOARCH, "-out", out)
		built = append(built, out)
	}
	plugin := "pg-ratelimit-traefik_" + tag + ".zip"
	name := "pg-ratelimit_" + tag + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	for _, file := range []string{name, plugin, "SHA256SUMS"} {
		if readFile(t, filepath.Join(built[0], file)) != readFile(t, filepath.Join(built[1], file)) {
			t.Errorf("two builds of %s differ, want the same bytes", file)
		}
	}
	output(t, "sh", "-c", "cd "+built[0]+" && sha256sum -c SHA256SUMS && tar xzf "+name)
	folder := filepath.Join(built[0], strings.TrimSuffix(name, ".tar.gz"))
	checkModule(t, filepath.Join(folder, "caddy"), host.Version)
	if version := inRoot(t, folder, "/pg-ratelimit", "--version"); !strings.Contains(version, host.Version) {
		t.Errorf("pg-ratelimit --version prints %s, want %s", version, host.Version)
	}
	inRoot(t, folder, "/caddy", "validate", "--adapter", "caddyfile", "--config", "/Caddyfile.example")
	program := filepath.Join(folder, "pg-ratelimit")
	modules := readFile(t, filepath.Join(folder, "DEPENDENCIES.txt"))
	for _, m := range submatches(`(?m)^\tdep\t(\S+\t\S+)`, output(t, "go", "version", "-m", program)) {
		if line := strings.Replace(m, "\t", " ", 1); !strings.Contains(modules, line) &&
			!strings.HasPrefix(m, modulePath+"\t") {
			t.Errorf("DEPENDENCIES.txt lacks %s, a module of pg-ratelimit", line)
		}
	}
	dir := t.TempDir()
	unzip(t, filepath.Join(built[0], plugin), dir)
	traefikLimits(t, dir)
	for file, want := range map[string]string{
		"DEPENDENCIES.txt": "github.com/caddyserver/caddy/v2 v2.",
		"LICENSES.txt":     "==== github.com/jackc/pgx/v5 v5.", "LICENSE": "Apache License",
		"schema.sql": schema.File, "Caddyfile.example": "pg_ratelimit",
	} {
		if !strings.Contains(readFile(t, filepath.Join(folder, file)), want) {
			t.Errorf("%s of the archive lacks %q", file, want)
		}
	}
}

// inRoot returns what a program prints with a folder as the root of its files. A machine that has no
// namespaces for users needs sudo.
func inRoot(t *testing.T, folder string, command ...string) string {
	t.Helper()
	t.Setenv("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")
	return output(t, append([]string{"sh", "-c",
		`unshare -r true && exec unshare -r -R "$0" "$@"; exec sudo -n -E chroot "$0" "$@"`, folder},
		command...)...)
}

// unzip unpacks an archive into a folder.
func unzip(t *testing.T, archive, folder string) {
	t.Helper()
	files, err := zip.OpenReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if err := os.CopyFS(folder, files); err != nil {
		t.Fatal(err)
	}
}
