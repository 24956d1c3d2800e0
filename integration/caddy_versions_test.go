package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// caddyRequired is the version of Caddy that a go.mod requires.
func caddyRequired(t *testing.T, folder string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = folder
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, module := range file.Require {
		if module.Path == "github.com/caddyserver/caddy/v2" {
			return module.Version
		}
	}
	t.Fatalf("%s/go.mod does not require Caddy", folder)
	return ""
}

// checkCaddy checks that a Caddy has the version, and the module in this version.
func checkCaddy(t *testing.T, program, version string) {
	t.Helper()
	for command, want := range map[string]string{"version": version + " ",
		"list-modules --versions": "\nhttp.handlers.pg_ratelimit " + host.Version + "\n"} {
		said, err := exec.Command(program, strings.Fields(command)...).Output()
		if err != nil || !strings.Contains("\n"+string(said), want) {
			t.Errorf("caddy %s says %q, %v; want %q", command, said, err, want)
		}
	}
}

// xcaddy builds a module that requires Caddy in the version named on its command
// line, and each other module in the version that Caddy and pg-ratelimit require.
// If this version is the one in go.mod, these are the modules of go.mod.
func TestTheOldestCaddyBuildsWithTheModule(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for from, to := range map[string]string{"go.mod": "go.mod", "go.sum": "go.sum",
		"xcaddy/main.go": "main.go"} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, to), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit := exec.Command("go", "mod", "edit", "-module=caddy",
		"-require=github.com/pgratelimit/pg-ratelimit@"+host.Version,
		"-replace=github.com/pgratelimit/pg-ratelimit="+root)
	edit.Dir = folder
	if text, err := edit.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	checkCaddy(t, harness.Build(t, folder, ".", "-mod=mod", "-tags", "nobadger,nomysql,nopgx"),
		caddyRequired(t, ".."))
}

func TestTheGuideNamesTheOldestAndTheNewestCaddy(t *testing.T) {
	guide, err := os.ReadFile("../docs/caddy.md")
	if err != nil {
		t.Fatal(err)
	}
	for what, version := range map[string]string{"oldest": caddyRequired(t, ".."), "newest": caddyRequired(t,
		"../xcaddy")} {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(version[1:]) + `\b`).Match(guide) {
			t.Errorf("docs/caddy.md does not name %s, the %s Caddy that is tested", version, what)
		}
	}
}
