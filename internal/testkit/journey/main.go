// Command journey counts the functions of this module that run for each request of a kind, and their files,
// for ARCHITECTURE.md. It runs tests that send such requests, with coverage counters. Run it in the folder of
// the module. -v lists the functions.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/pgratelimit/pg-ratelimit/"

// minRuns is the number of runs from which on a function counts as one that runs for each request. A test
// sends 2,000 requests, and the first ones also run other functions. Background functions run far fewer
// times.
const minRuns = 1800

// journeys are the kinds of requests, with the tests that send them.
var journeys = []struct{ name, folder, test string }{
	{"exact request through Caddy", "./caddymodule", "TestJourneyOfExactRequest"},
	{"leased request through Traefik", "./traefikplugin", "TestJourneyOfLeasedRequest"},
	{"request with policy through Caddy", "./caddymodule", "TestJourneyOfRequestWithPolicy"},
}

func main() {
	list := flag.Bool("v", false, "list the functions")
	flag.Parse()
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "journey")
	if err != nil {
		log.Fatal(err)
	}
	profile := filepath.Join(dir, "profile")
	for _, j := range journeys {
		text, err := exec.Command("go", "test", "-covermode=count", "-coverpkg=./...",
			"-coverprofile="+profile, "-run=^"+j.test+"$", j.folder).CombinedOutput()
		if err != nil {
			log.Fatalf("%s: %v: %s", j.test, err, text)
		}
		functions, files := 0, 0
		for path, blocks := range readProfile(profile) {
			names := called(path, blocks)
			functions += len(names)
			files += min(1, len(names))
			if *list && len(names) > 0 {
				fmt.Printf("\t%s: %s\n", path, strings.Join(names, ", "))
			}
		}
		fmt.Printf("%s: %d functions in %d files\n", j.name, functions, files)
	}
	_ = os.RemoveAll(dir)
}

// block has the start of a block of statements, and the number of its runs.
type block struct{ line, column, count int }

// readProfile returns the blocks of a profile by file path. The blocks of a file are sorted by position.
func readProfile(profile string) map[string][]block {
	text, err := os.ReadFile(profile)
	if err != nil {
		log.Fatal(err)
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
			log.Fatalf("%q: %v", line, err)
		}
		blocksByPath[path+".go"] = append(blocksByPath[path+".go"], b)
	}
	for _, blocks := range blocksByPath {
		slices.SortFunc(blocks, func(a, b block) int { return (a.line-b.line)*1000 + a.column - b.column })
	}
	return blocksByPath
}

// called returns the functions of a file with a first block that has run at least minRuns times.
func called(path string, blocks []block) (names []string) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		log.Fatal(err)
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
