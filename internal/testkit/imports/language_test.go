package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// plain lists the packages in plain English. Add a package when its comments and lines keep these rules.
var plain = []string{
	"ratelimit", "ratelimit/httplimit", "ratelimit/memory", "ratelimit/pgdb", "ratelimit/pgxdb",
	"ratelimit/postgres",
	"internal/core/algorithm", "internal/core/batch", "internal/core/pg", "internal/core/schema",
	"internal/core/health", "internal/core/lease", "internal/core/settings",
	"internal/plane/archive", "internal/plane/history", "internal/plane/page", "internal/plane/policy",
	"internal/proxy/host",
	"internal/proxy/pgwire",
	"internal/proxy/respond", "internal/proxy/serve",
	"caddymodule", "xcaddy", "bench", "bench/caddy",
	"integration", "integration/docs", "integration/docs/gosnippets",
	"integration/page", "deploy", "internal/demo", "internal/release", "internal/testkit/await",
	"internal/testkit/citus", "internal/testkit/cluster",
	"internal/testkit/cluster/leash", "internal/testkit/cluster/shared", "internal/testkit/cluster/versions",
	"internal/testkit/conformance", "internal/testkit/drivers", "internal/testkit/harness",
	"internal/testkit/install", "internal/testkit/npm", "internal/testkit/policytest",
	"internal/testkit/promtool", "internal/testkit/seed", "internal/testkit/slownet",
}

// stilted finds grammar that is hard to read, and code that is described as a person.
var stilted = regexp.MustCompile(`\b(in vain` +
	`|(is|are|was|were) (what|why|where|how|whom?)` +
	`|(is|are) no \w+` +
	`|of which|whose|whom|whoever` +
	`|knows?|believes?|believed|wants|thinks|tells|told|notices|obeys` +
	`|(gives?|given|giving|gave)( \w+){0,3} back` +
	`|(not|no) .{0,30}any ?more` +
	`|also (if|of|for|by|in|while|when))\b`)

// mostColumns is the length of the longest line of SQL and Markdown, with tabs of four columns.
// Golangci-lint checks Go.
const mostColumns = 110

func TestCommentsAreInPlainEnglish(t *testing.T) {
	for _, dir := range plain {
		for _, file := range glob(t, dir, "*.go") {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if ast.IsGenerated(f) {
				continue
			}
			for _, group := range f.Comments {
				text := strings.Join(strings.Fields(group.Text()), " ")
				for _, found := range stilted.FindAllString(text, -1) {
					if strings.HasSuffix(found, "no longer") || strings.HasSuffix(found, "no more") {
						continue
					}
					t.Errorf("%s: %q: say it more simply: %s", fset.Position(group.Pos()), found, text)
				}
			}
		}
	}
}

func TestADocCommentBeginsWithItsName(t *testing.T) {
	for _, dir := range plain {
		for _, file := range glob(t, dir, "*.go") {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					beginsWith(t, fset, d.Doc, d.Name.Name)
				case *ast.GenDecl:
					// The comment of a group in parentheses is about the group.
					if spec, ok := d.Specs[0].(*ast.TypeSpec); ok && !d.Lparen.IsValid() {
						beginsWith(t, fset, d.Doc, spec.Name.Name)
					}
				}
			}
		}
	}
}

// beginsWith reports a doc comment that does not begin with name.
func beginsWith(t *testing.T, fset *token.FileSet, doc *ast.CommentGroup, name string) {
	t.Helper()
	// A test that other packages call may begin with what it tests, as in "testReadOnly: a session …".
	text, isTest := doc.Text(), strings.HasPrefix(name, "test")
	if text != "" && !strings.HasPrefix(text, name+" ") && !(isTest && strings.HasPrefix(text, name+": ")) {
		t.Errorf("%s: the comment of %s does not begin with its name", fset.Position(doc.Pos()), name)
	}
}

func TestLinesOfSQLAreShort(t *testing.T) {
	for _, dir := range plain {
		for _, file := range glob(t, dir, "*.sql") {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(text), "\n") {
				if n := len([]rune(line)) + 3*strings.Count(line, "\t"); n > mostColumns {
					t.Errorf("%s:%d: the line has %d columns, want at most %d", file, i+1, n, mostColumns)
				}
			}
		}
	}
}

// glob returns the files of a folder of the repository.
func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var (
	markdown    = []string{"*.md", "docs/*.md", "bench/*.md"}
	fence       = regexp.MustCompile("^ *```(\\w*)")
	linkOrImage = regexp.MustCompile(`\]\([^)]*\)`)
)

// Tables, links, and commands with their output may be wider.
func TestLinesOfMarkdownAreShort(t *testing.T) {
	for _, pattern := range markdown {
		for _, file := range glob(t, ".", pattern) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			language, inCode := "", false
			for i, line := range strings.Split(string(text), "\n") {
				if f := fence.FindStringSubmatch(line); f != nil {
					inCode, language = !inCode, f[1]
				}
				if strings.HasPrefix(line, "|") || inCode && language != "sql" && language != "text" {
					continue
				}
				line = linkOrImage.ReplaceAllString(line, "]")
				if n := len([]rune(line)) + 3*strings.Count(line, "\t"); n > mostColumns {
					t.Errorf("%s:%d: the line has %d columns, want at most %d", file, i+1, n, mostColumns)
				}
			}
		}
	}
}

// longTests lists the packages with tests of more than 60 lines or ten words. It only shrinks.
var longTests = map[string]bool{
	"deploy": true, "internal/plane/policy": true, "internal/proxy/serve": true,
}

var wordOfName = regexp.MustCompile(`[A-Z][a-z0-9]+|[A-Z]+`)

func TestTestsAreShort(t *testing.T) {
	for _, dir := range plain {
		for _, file := range glob(t, dir, "*_test.go") {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				test, ok := d.(*ast.FuncDecl)
				if !ok || longTests[dir] || !strings.HasPrefix(test.Name.Name, "Test") {
					continue
				}
				n := fset.Position(test.Body.Rbrace).Line - fset.Position(test.Body.Lbrace).Line - 1
				words := len(wordOfName.FindAllString(strings.TrimPrefix(test.Name.Name, "Test"), -1))
				if n > 60 || words > 10 {
					t.Errorf("%s: %s has %d lines and %d words, want at most 60 and 10",
						fset.Position(test.Pos()), test.Name.Name, n, words)
				}
			}
		}
	}
}
