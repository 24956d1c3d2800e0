package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	step     = regexp.MustCompile("(?m)^\\| \\d+ \\| `(\\w+)` \\| `([\\w/.]+)` \\|")
	journeys = regexp.MustCompile(`(?m)^\|---\|---\|---\|---\|\n((?:\| \d+ \|.*\n)+)`)
)

// ARCHITECTURE.md describes three requests by functions that exist, each in at most fifteen steps.
func TestEachStepOfTheMapExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables := journeys.FindAllString(string(text), -1)
	if len(tables) != 3 {
		t.Fatalf("%d tables of steps, want 3", len(tables))
	}
	for _, table := range tables {
		lines, steps := regexp.MustCompile(`(?m)^\| \d`).FindAllString(table, -1),
			step.FindAllStringSubmatch(table, -1)
		if len(steps) != len(lines) || len(steps) > 15 {
			t.Errorf("the test understands %d of %d steps, want all, and at most 15:\n%s", len(steps),
				len(lines), table)
		}
		for _, s := range steps {
			if !declares(t, s[2], s[1]) {
				t.Errorf("%s has no function %s", s[2], s[1])
			}
		}
	}
}

// declares reports whether a file declares a function or method of that name.
func declares(t *testing.T, path, name string) bool {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil,
		parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return false
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Name.Name == name {
			return true
		}
	}
	return false
}
