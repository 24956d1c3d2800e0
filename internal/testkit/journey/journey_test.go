// Package journey counts the functions of this module that run for each request of a kind, and their files.
// It runs tests that send such requests, with coverage counters, and compares the figures with
// ARCHITECTURE.md.
package journey_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

const (
	module = "github.com/pgratelimit/pg-ratelimit/"
	// root is the folder of the module.
	root = "../../.."
)

// minRuns is the number of runs from which on a function counts as one that runs for each request. A test
// sends 2,000 requests, and the first ones also run other functions. Background functions run far fewer
// times.
const minRuns = 1800

// journeys are the kinds of requests, with the tests that send them.
var journeys = []struct{ name, folder, test string }{
	{"an exact request through Caddy", "./caddymodule", "TestJourneyOfExactRequest"},
	{"a leased request through Traefik", "./traefikplugin", "TestJourneyOfLeasedRequest"},
	{"a request with policy through Caddy", "./caddymodule", "TestJourneyOfRequestWithPolicy"},
}

// ARCHITECTURE.md says how many functions and files run for each request. With -v, the log lists them.
func TestFiguresOfMap(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it compiles the module with counters")
	}
	table := "| | functions | files |\n|---|---|---|\n"
	for _, j := range journeys {
		profile := filepath.Join(t.TempDir(), "profile")
		cmd := exec.Command("go", "test", "-vet=off", "-covermode=count", "-coverpkg=./...",
			"-coverprofile="+profile, "-run=^"+j.test+"$", j.folder)
		cmd.Dir = root
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", j.test, err, text)
		}
		functions, files := 0, 0
		for path, blocks := range readProfile(t, profile) {
			if names := called(t, path, blocks); len(names) > 0 {
				functions += len(names)
				files++
				t.Logf("%s: %s: %s", j.name, path, strings.Join(names, ", "))
			}
		}
		table += fmt.Sprintf("| %s | %d | %d |\n", j.name, functions, files)
	}
	golden.CheckPart(t, root+"/ARCHITECTURE.md", "go test ./internal/testkit/journey", table)
}

// block has the start of a block of statements, and the number of its runs.
type block struct{ line, column, count int }

// readProfile returns the blocks of a profile by file path. The blocks of a file are sorted by position.
func readProfile(t *testing.T, profile string) map[string][]block {
	t.Helper()
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	blocksByPath := map[string][]block{}
	for line := range strings.Lines(string(text)) {
		path, rest, found := strings.Cut(strings.TrimPrefix(line, module), ".go:")
		if !found || strings.Contains(path, "testkit/") {
			continue
		}
		var b block
		var other int
		_, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.column, &other, &other, &other, &b.count)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		blocksByPath[path+".go"] = append(blocksByPath[path+".go"], b)
	}
	for _, blocks := range blocksByPath {
		slices.SortFunc(blocks, func(a, b block) int { return (a.line-b.line)*1000 + a.column - b.column })
	}
	return blocksByPath
}

// called returns the functions of a file with a first block that has run at least minRuns times.
func called(t *testing.T, path string, blocks []block) (names []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, filepath.Join(root, path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		start, end := set.Position(f.Body.Lbrace), set.Position(f.Body.Rbrace)
		first := slices.IndexFunc(blocks, func(b block) bool {
			return b.line > start.Line || b.line == start.Line && b.column >= start.Column
		})
		if first >= 0 && blocks[first].line <= end.Line && blocks[first].count >= minRuns {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
