package imports

import (
	"go/ast"
	"regexp"
	"testing"
)

var (
	step       = regexp.MustCompile("(?m)^\\| \\d+ \\| `(\\w+)` \\| `([\\w/.]+)` \\|")
	stepTables = regexp.MustCompile(`(?m)^\|---\|---\|---\|---\|\n((?:\| \d+ \|.*\n)+)`)
)

// ARCHITECTURE.md describes two requests and the way of a rule by functions that exist, each in at most
// fifteen steps.
func TestEachStepOfMapExists(t *testing.T) {
	tables := stepTables.FindAllString(readFile(t, "ARCHITECTURE.md"), -1)
	if len(tables) != 3 {
		t.Fatalf("%d tables of steps, want 3", len(tables))
	}
	for _, table := range tables {
		lines, steps := regexp.MustCompile(`(?m)^\| \d`).FindAllString(table, -1),
			step.FindAllStringSubmatch(table, -1)
		if len(steps) != len(lines) || len(steps) > 15 {
			t.Errorf("%d of %d steps have the right form, want all, and at most 15:\n%s", len(steps),
				len(lines), table)
		}
		for _, s := range steps {
			if !declaresFunction(t, s[2], s[1]) {
				t.Errorf("%s does not declare %s, want a function of that name", s[2], s[1])
			}
		}
	}
}

// declaresFunction reports whether a file declares a function or method of that name.
func declaresFunction(t *testing.T, path, name string) bool {
	for _, s := range sources(t) {
		for _, d := range s.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.path == path && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
