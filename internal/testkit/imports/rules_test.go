package imports

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// module is the import path of this module.
const module = "github.com/pgratelimit/pg-ratelimit"

//go:embed rules.txt
var importRules string

// pkg is the output of `go list -json` about a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Export     string
	Imports    []string
	Deps       []string
	GoFiles    []string
	Module     *struct{ Path string }
}

// root is the folder of go.mod, relative to this package.
const root = "../../.."

// readFile returns the text of a file. The path is relative to root.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	check.OK(t, err)
	return string(text)
}

// packages lists all packages of this module and of its dependencies, by path.
var packages = sync.OnceValues(func() (map[string]pkg, error) { return goList("-deps", "./...") })

// compiled lists the packages of which tests check types, and their dependencies, with export data.
var compiled = sync.OnceValues(func() (map[string]pkg, error) {
	args := []string{"-export", "-deps", "./internal/store/..."}
	for _, dir := range slices.Concat(public, Interpreted) {
		args = append(args, "./"+dir)
	}
	return goList(args...)
})

// goList runs `go list` at the root.
func goList(args ...string) (map[string]pkg, error) {
	cmd := exec.Command("go",
		append([]string{"list", "-json=ImportPath,Standard,Export,Imports,Deps,GoFiles,Module"}, args...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %v: %w", args, err)
	}
	listed := make(map[string]pkg)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return listed, nil
		} else if err != nil {
			return nil, err
		}
		listed[p.ImportPath] = p
	}
}

// listed returns a list from above, and fails the test if there is none.
func listed(t *testing.T, list func() (map[string]pkg, error)) map[string]pkg {
	t.Helper()
	packages, err := list()
	check.OK(t, err)
	return packages
}

// importerOf reads the types of imported packages from their export data.
func importerOf(fset *token.FileSet, exported map[string]pkg) types.Importer {
	return importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exported[path].Export) })
}

// Each package outside the testkit has a rule, and imports only what its rule permits.
func TestImportsFollowTheRules(t *testing.T) {
	packages := listed(t, packages)
	seen := make(map[string]bool)
	for line := range strings.Lines(strings.ReplaceAll(importRules, "\n\t", " ")) {
		dir, allowed, found := strings.Cut(strings.TrimSpace(line), ":")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		path := module + "/" + dir
		p, ok := packages[path]
		if !ok {
			t.Errorf("%s has a rule and is not a package of this module", dir)
		}
		seen[path] = true
		for _, complaint := range complaintsAbout(dir, allowed, p, packages) {
			t.Error(complaint)
		}
	}
	for path, p := range packages {
		// The packages of the testkit need no rule, because other packages import them only if their own
		// rules permit it.
		// A folder without code has SQL and tests.
		if p.Module != nil && p.Module.Path == module && len(p.GoFiles) > 0 && !seen[path] &&
			!strings.HasPrefix(path, module+"/internal/testkit/") {
			t.Errorf("%s has no rule: say in rules.txt what it may import, and why",
				strings.TrimPrefix(path, module+"/"))
		}
	}
}

// complaintsAbout returns a complaint for each import that breaks the rule of a package. Only direct imports
// matter, because the packages that they lead to have their own rules.
func complaintsAbout(dir, rule string, p pkg, packages map[string]pkg) (complaints []string) {
	first, second, _ := strings.Cut(rule, "|")
	ours, others := strings.Fields(first), strings.Fields(second)
	for _, path := range p.Imports {
		imported, own := strings.CutPrefix(path, module+"/")
		allowed := packages[path].Standard && path != "C" // the programs are built without cgo
		if own {
			allowed = slices.ContainsFunc(ours,
				func(end string) bool { return strings.HasSuffix("/"+imported, "/"+end) })
		}
		allowed = allowed || slices.ContainsFunc(others,
			func(other string) bool { return path == other || strings.HasPrefix(path, other+"/") })
		if !allowed {
			complaints = append(complaints, dir+" imports "+path+" and must not")
		}
	}
	return complaints
}

// Interpreted lists exactly the packages that Traefik interprets: the plugin and those that it imports.
func TestInterpretedPackagesAreListed(t *testing.T) {
	packages := listed(t, packages)
	got := []string{"traefikplugin"}
	for _, path := range packages[module+"/traefikplugin"].Deps {
		if p := packages[path]; p.Module != nil && p.Module.Path == module {
			got = append(got, strings.TrimPrefix(path, module+"/"))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(Interpreted))) {
		t.Errorf("traefikplugin imports %q, want the packages of Interpreted", got)
	}
}

// The file go.mod replaces no module, because a replacement has no effect for users of this module.
func TestNoModuleIsReplaced(t *testing.T) {
	if strings.Contains(readFile(t, "go.mod"), "\nreplace ") {
		t.Error("go.mod replaces a module, want no replacements")
	}
}
