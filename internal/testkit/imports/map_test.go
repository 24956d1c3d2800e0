package imports

import (
	_ "embed"
	"go/ast"
	"go/doc"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// ways has the sections of the page of ways. Each has its title, and functions as FILE FUNCTION.
//
//go:embed ways.txt
var ways string

// The page of ways has, for each function that it follows, the first sentence of its comment.
func TestPageFollowsRequestsThroughTheCode(t *testing.T) {
	page := ""
	for line := range strings.Lines(ways) {
		if title, isTitle := strings.CutSuffix(line, ":\n"); isTitle {
			page += "\n## " + title + "\n\n| function | file | what it does |\n|---|---|---|\n"
		}
		if path, name, isStep := strings.Cut(strings.TrimSpace(line), " "); isStep && line[0] == '\t' {
			comment := commentOf(t, path, name)
			if comment == "" {
				t.Errorf("%s declares no function %s with a comment, want one for the page", path, name)
			}
			page += "| `" + name + "` | `" + path + "` | " + strings.TrimPrefix(comment, name+" ") + " |\n"
		}
	}
	golden.CheckPage(t, root+"/docs/generated/ways.md", "testdata/ways.md",
		map[string]string{"WAYS": strings.TrimPrefix(page, "\n")})
}

// commentOf returns the first sentence of the comment of a function or method in a file of Go or SQL.
func commentOf(t *testing.T, path, name string) string {
	t.Helper()
	if strings.HasSuffix(path, ".sql") {
		before, _, _ := strings.Cut(readFile(t, path), "\nCREATE OR REPLACE FUNCTION "+name+"(")
		comment := before[strings.LastIndex(before, "\n\n")+2:]
		return new(doc.Package).Synopsis(strings.TrimPrefix(strings.ReplaceAll(comment, "\n-- ", " "), "-- "))
	}
	for _, s := range sources(t) {
		for _, d := range s.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.path == path && f.Name.Name == name {
				return new(doc.Package).Synopsis(f.Doc.Text())
			}
		}
	}
	return ""
}
