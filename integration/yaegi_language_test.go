package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
)

// interpretedFolders are the packages that Traefik interprets.
var interpretedFolders = []string{
	"ratelimit", "internal/core/algorithm", "internal/plane/history", "internal/plane/policy", "ratelimit/pgdb", "internal/core/schema",
	"internal/core/batch", "internal/core/results", "internal/proxy/edge", "internal/core/lease", "internal/proxy/pgwire", "internal/testkit/policytest", "internal/core/sqlstate", "internal/core/timeline", "internal/store", "internal/store/chain", "internal/store/engine", "internal/store/known", "internal/store/leases", "internal/store/local", "internal/store/own", "internal/store/parts", "internal/store/settle", "internal/store/slots", "internal/store/memory", "internal/store/registry", "traefikplugin",
}

// TestYaegiStillGetsThisWrong fails if Yaegi runs a hazard correctly: its rule is then not
// needed any more.
func TestYaegiStillGetsThisWrong(t *testing.T) {
	for _, h := range hazards {
		if h.proof == "" {
			continue
		}
		i := interp.New(interp.Options{Stderr: &output{}})
		if err := i.Use(stdlib.Symbols); err != nil {
			t.Fatal(err)
		}
		if _, err := i.Eval(h.setup); err != nil {
			t.Errorf("%s: %v", h.name, err)
			continue
		}
		right, err := i.Eval(h.proof)
		if err == nil && right.Bool() {
			t.Errorf("Yaegi does it right: %s", h.name)
		}
	}
}

// TestHazardsAreFound tests the search for each hazard with its proof.
func TestHazardsAreFound(t *testing.T) {
	for _, h := range hazards {
		if h.found == nil {
			continue
		}
		if h.setup != "" && !contains(parsed(t, h.setup), h.found) {
			t.Errorf("not found in its proof: %s", h.name)
		}
		if contains(parsed(t, h.fine), h.found) {
			t.Errorf("found where it is not: %s", h.name)
		}
	}
}

// parsed parses declarations.
func parsed(t *testing.T, declarations string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+declarations, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestInterpretedCodeAvoidsWhatYaegiGetsWrong looks for hazards in the interpreted packages.
func TestInterpretedCodeAvoidsWhatYaegiGetsWrong(t *testing.T) {
	for _, folder := range interpretedFolders {
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(folder), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("%s has no files", folder)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, complaint := range hazardsIn(t, path) {
				t.Error(complaint)
			}
		}
	}
}

// hazardsIn are the hazards in a file, each with its place.
func hazardsIn(t *testing.T, path string) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var complaints []string
	for _, declaration := range file.Decls {
		function := ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			for _, h := range hazards {
				if h.exempt[function] == "" && n != nil && h.found != nil && h.found(n) {
					complaints = append(complaints, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), h.name))
				}
			}
			return true
		})
	}
	return complaints
}
