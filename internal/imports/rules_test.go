package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is what all our import paths begin with.
const module = "github.com/pgratelimit/pg-ratelimit"

// rule says what a package of ours may import besides the standard library.
// Its tests may import more: they run where everything is at hand.
type rule struct {
	dir    string   // its folder
	ours   []string // folders of ours that it may import
	others []string // modules of others
	later  bool     // the folder need not be there yet
	reason string
}

var rules = []rule{
	{
		dir:    "ratelimit",
		reason: "the core knows no proxy and no driver, and Traefik interprets it from source, where only the standard library can be had",
	}, {
		dir: "internal/edge", ours: []string{"ratelimit"},
		reason: "what both proxies do with a request is interpreted, too, and knows neither of them",
	}, {
		dir: "internal/pgwire", ours: []string{"ratelimit"},
		reason: "it exists because drivers cannot be interpreted",
	}, {
		dir: "ratelimit/pgxdb", ours: []string{"ratelimit"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "Go programs use it without any proxy",
	}, {
		dir: "ratelimit/httplimit", ours: []string{"internal/edge", "ratelimit"},
		reason: "a Go program's middleware needs no driver: it is given a limiter",
	}, {
		dir: "traefikplugin", ours: []string{"internal/edge", "ratelimit", "internal/pgwire"}, later: true,
		reason: "Traefik interprets it, and it must not know the other adapter",
	}, {
		dir: "caddymodule", ours: []string{"internal/edge", "ratelimit", "ratelimit/pgxdb"},
		// Prometheus: Caddy hands out a registry of that package's type.
		others: []string{"github.com/caddyserver/caddy/v2", "go.uber.org/zap", "github.com/prometheus/client_golang"},
		reason: "it must not know the other adapter, nor Postgres but by way of pgxdb",
	}, {
		dir: "xcaddy", ours: []string{"caddymodule"}, others: []string{"github.com/caddyserver/caddy/v2"},
		reason: "it is what xcaddy would make, and no more",
	}, {
		dir: "internal/cluster", ours: []string{"internal/cluster/leash"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "it makes databases for tests of all packages, so it can use none of them",
	}, {
		dir:    "internal/cluster/leash",
		reason: "it ends processes and knows nothing of what they are",
	}, {
		dir: "internal/conformance", ours: []string{"ratelimit", "internal/cluster"},
		reason: "the tests of every store and driver run it, so it knows none of them",
	}, {
		dir: "internal/cluster/versions", ours: []string{"internal/npm"},
		reason: "it runs a command against servers that it fetches; the command may be any of ours",
	}, {
		dir:    "internal/npm",
		reason: "it fetches packages and knows nothing of what is in them",
	}, {
		dir: "internal/demo", ours: []string{"internal/cluster", "internal/cluster/leash"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "it runs programs, as a person would",
	}, {
		dir:    "internal/imports",
		reason: "it looks at the others from outside",
	},
}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Export     string
	Imports    []string
	Deps       []string
	GoFiles    []string
	Module     *struct{ Path string }
}

// root is the folder of go.mod, from this package's own.
const root = "../.."

// goList runs `go list` at the root.
func goList(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Export,Imports,Deps,GoFiles,Module"}, args...)...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v: %s", args, err, stderr.String())
	}
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestWhoMayImportWhom(t *testing.T) {
	packages := make(map[string]pkg)
	for _, p := range goList(t, "-deps", "./...") {
		packages[p.ImportPath] = p
	}
	seen := make(map[string]bool)
	for _, r := range rules {
		path := module + "/" + r.dir
		p, there := packages[path]
		if !there {
			if !r.later || hasGoFiles(t, r.dir) {
				t.Errorf("%s is not a package of this module; the rules name it", r.dir)
			}
			continue
		}
		seen[path] = true
		for _, complaint := range r.check(p, packages) {
			t.Error(complaint)
		}
	}
	for path, p := range packages {
		if p.Module != nil && p.Module.Path == module && !seen[path] {
			t.Errorf("%s has no rule: say in this test what it may import, and why", strings.TrimPrefix(path, module+"/"))
		}
	}
}

// check is what is wrong with a package's imports. Packages of ours that it
// may import have rules of their own, so looking at its own imports is enough.
func (r rule) check(p pkg, packages map[string]pkg) []string {
	var complaints []string
	for _, imported := range p.Imports {
		if imported == "C" {
			complaints = append(complaints, r.dir+` imports "C": every program of ours is built without cgo`)
			continue
		}
		if packages[imported].Standard {
			continue
		}
		if dir, ours := strings.CutPrefix(imported, module+"/"); ours {
			if !slices.Contains(r.ours, dir) {
				complaints = append(complaints, r.dir+" imports "+dir+" and must not: "+r.reason)
			}
			continue
		}
		if !slices.ContainsFunc(r.others, func(other string) bool {
			return imported == other || strings.HasPrefix(imported, other+"/")
		}) {
			complaints = append(complaints, r.dir+" imports "+imported+" and must not: "+r.reason)
		}
	}
	return complaints
}

func TestARuleFindsWhatBreaksIt(t *testing.T) {
	packages := map[string]pkg{"net/http": {Standard: true}}
	r := rule{dir: "x", ours: []string{"ratelimit"}, others: []string{"example.org/driver"}, reason: "of this"}
	good := pkg{Imports: []string{"net/http", module + "/ratelimit", "example.org/driver", "example.org/driver/pool"}}
	if complaints := r.check(good, packages); len(complaints) > 0 {
		t.Errorf("of imports that are allowed: %q", complaints)
	}
	for _, bad := range []string{module + "/caddymodule", module + "/ratelimit/pgxdb", "example.org/drivers", "example.org/other", "C"} {
		complaints := r.check(pkg{Imports: []string{bad}}, packages)
		if len(complaints) != 1 || !strings.Contains(complaints[0], strings.TrimPrefix(bad, module+"/")) {
			t.Errorf("of %s: %q, want one complaint that names it", bad, complaints)
		}
	}
}

// The core and what is interpreted with it take nothing but the standard
// library, by whatever way.
func TestInterpretedPackagesNeedNoModule(t *testing.T) {
	for _, dir := range interpreted(t) {
		for _, p := range goList(t, "-deps", "./"+dir) {
			if !p.Standard && p.Module.Path != module {
				t.Errorf("%s needs %s: a plugin has no module but its own", dir, p.ImportPath)
			}
		}
	}
}

// A plugin's source is this module, so what its go.mod names is what everyone
// downloads who uses any part of it.
func TestGoMod(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	if file.Module.Path != module || len(file.Require) == 0 {
		t.Fatalf("go.mod is of %q and requires %d modules, want %q and some", file.Module.Path, len(file.Require), module)
	}
	for _, require := range file.Require {
		if strings.HasPrefix(require.Path, "github.com/traefik/") || strings.HasPrefix(require.Path, "github.com/containous/") {
			t.Errorf("go.mod requires %s: the interpreter and Traefik belong to the module in integration", require.Path)
		}
	}
	for _, replace := range file.Replace {
		t.Errorf("go.mod replaces %s: replacements do not hold for those who use the module", replace.Old.Path)
	}
}

// interpreted are the folders of the packages that Traefik interprets.
func interpreted(t *testing.T) []string {
	dirs := []string{"ratelimit", "internal/edge", "internal/pgwire"}
	if hasGoFiles(t, "traefikplugin") {
		dirs = append(dirs, "traefikplugin")
	}
	return dirs
}

// hasGoFiles tells whether Go files lie in a folder that may be missing.
func hasGoFiles(t *testing.T, dir string) bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found) > 0
}
