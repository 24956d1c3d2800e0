//go:build release

package deploy

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// Two clones build the same archive of this platform. Its checksum is right, its Caddy runs, and it contains
// the licenses, the list of modules, the SQL and the example.
func TestArchivesAreTheSameBytes(t *testing.T) {
	var built []string
	for range 2 {
		clone, out := filepath.Join(t.TempDir(), "clone"), t.TempDir()
		output(t, "git", "clone", "--quiet", root, clone)
		output(t, "go", "run", "-C", clone, "./internal/release", "-platforms",
			runtime.GOOS+"/"+runtime.GOARCH, "-out", out)
		built = append(built, out)
	}
	name := "pg-ratelimit-caddy_" + tag + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	for _, file := range []string{name, "SHA256SUMS"} {
		if readFile(t, filepath.Join(built[0], file)) != readFile(t, filepath.Join(built[1], file)) {
			t.Errorf("two builds of %s differ, want the same bytes", file)
		}
	}
	output(t, "sh", "-c", "cd "+built[0]+" && sha256sum -c SHA256SUMS && tar xzf "+name)
	folder := filepath.Join(built[0], strings.TrimSuffix(name, ".tar.gz"))
	checkModule(t, filepath.Join(folder, "caddy"), host.Version)
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
