package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/imports"
)

// No interpreted package has a construct that Yaegi runs wrongly.
func TestInterpretedCodeAvoidsYaegiHazards(t *testing.T) {
	for _, folder := range imports.Interpreted {
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(folder), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("%s has no files, want some", folder)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, found := range hazardsIn(t, path) {
				t.Error(found)
			}
		}
	}
}

// hazardsIn returns the hazards in a file, each with its position.
func hazardsIn(t *testing.T, path string) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, declaration := range file.Decls {
		function := ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			for _, h := range hazards {
				if h.exempt[function] == "" && n != nil && h.matches(n) {
					found = append(found, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), h.name))
				}
			}
			return true
		})
	}
	return found
}
