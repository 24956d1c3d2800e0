package imports

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxUpward bounds the upward arrows in internal/store. An arrow leads from a file to another file of its
// package in which a function is declared that the first file uses.
const maxUpward = 10

var (
	filesOf  = regexp.MustCompile(`(?s)The files, from the top down: (.*?)\.\s`)
	fileName = regexp.MustCompile(`\w+\.go`)
)

// A reader of internal/store reads the files of a package from the top down, in the order in its comment.
func TestCallsInStoreLeadDown(t *testing.T) {
	exports := make(map[string]string)
	var packages []pkg
	for _, p := range goList(t, "-export", "-deps", "./internal/store/...") {
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module+"/internal/store") {
			packages = append(packages, p)
		}
	}
	var upward []string
	for _, p := range packages {
		upward = append(upward, upwardArrows(t, p, exports)...)
	}
	if len(packages) < 5 || len(upward) > maxUpward {
		t.Errorf("%d packages, with %d upward arrows:\n%s\nwant at most %d, and at least 5 packages",
			len(packages), len(upward), strings.Join(upward, "\n"), maxUpward)
	}
}

// upwardArrows returns the upward arrows between the files of a package.
func upwardArrows(t *testing.T, p pkg, exports map[string]string) []string {
	t.Helper()
	fset := token.NewFileSet()
	var parsed []*ast.File
	var order []string
	dir := strings.TrimPrefix(p.ImportPath, module+"/")
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, name, readFile(t, filepath.Join(dir, name)), parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
		if list := filesOf.FindStringSubmatch(file.Doc.Text() + " "); list != nil {
			order = fileName.FindAllString(list[1], -1)
		}
	}
	want := slices.DeleteFunc(slices.Clone(p.GoFiles), func(name string) bool { return name == "doc.go" })
	if !slices.Equal(slices.Sorted(slices.Values(order)), want) {
		t.Errorf("the comment of package %s lists the files %q, want %q from the top down", dir, order, want)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	from := importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	if _, err := (&types.Config{Importer: from}).Check(p.ImportPath, fset, parsed, info); err != nil {
		t.Fatal(err)
	}
	var arrows []string
	for name, object := range info.Uses {
		if f, ok := object.(*types.Func); ok && f.Pkg() != nil && f.Pkg().Path() == p.ImportPath {
			user, declares := fset.Position(name.Pos()).Filename, fset.Position(f.Pos()).Filename
			if slices.Index(order, user) > slices.Index(order, declares) {
				arrows = append(arrows, dir+": "+user+" → "+declares)
			}
		}
	}
	slices.Sort(arrows)
	return slices.Compact(arrows)
}
