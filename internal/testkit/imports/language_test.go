package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// stilted finds grammar that is hard to read, and code that is described as a person.
var stilted = regexp.MustCompile(`in vain` +
	`|(is|are|was|were) (what|why|where|how|whom?)` +
	`|(is|are) no (\w*)` +
	`|of which|whose|whom|whoever` +
	`|knows?|believes?|believed|wants|thinks|tells|told|notices|obeys` +
	`|(gives?|given|giving|gave)( \w+){0,3} back` +
	`|(not|no) .{0,30}any ?more` +
	`|also (if|of|for|by|in|while|when)`)

// mostStilted bounds the matches of stilted in all comments. It only shrinks.
const mostStilted = 83

// mostColumns is the length of the longest line of SQL and Markdown, with tabs of four columns.
// Golangci-lint checks Go.
const mostColumns = 110

// source is a file of Go that was not generated.
type source struct {
	dir, path string
	fset      *token.FileSet
	*ast.File
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// at returns a place in the file for messages.
func (s *source) at(n ast.Node) token.Position { return s.fset.Position(n.Pos()) }

// sources reads all files of Go in the repository.
var sources = sync.OnceValues(func() (all []*source, err error) {
	err = eachFile(".go", func(path string) error {
		s := &source{dir: filepath.ToSlash(filepath.Dir(path)), path: path, fset: token.NewFileSet()}
		s.File, err = parser.ParseFile(s.fset, filepath.Join(root, path), nil, parser.ParseComments)
		if err == nil && !isGenerated(s.File) {
			all = append(all, s)
		}
		return err
	})
	return all, err
})

// isGenerated reports whether a comment of a file says that it was generated.
func isGenerated(f *ast.File) bool {
	return slices.ContainsFunc(f.Comments, func(group *ast.CommentGroup) bool {
		return strings.HasPrefix(group.Text(), "Code generated")
	})
}

// eachFile calls do for each file of the repository with an ending.
func eachFile(ending string, do func(path string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() != ".." && (d.Name()[0] == '.' || d.Name() == "bin") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		if path, err = filepath.Rel(root, path); err == nil {
			err = do(path)
		}
		return err
	})
}

func TestCommentsAreInPlainEnglish(t *testing.T) {
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range all {
		for _, group := range s.Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, found := range stilted.FindAllString(text, -1) {
				if strings.HasSuffix(found, "no longer") || strings.HasSuffix(found, "no more") {
					continue
				}
				if n++; n > mostStilted {
					t.Errorf("%s: %q: say it more simply: %s", s.at(group), found, text)
				}
			}
		}
	}
	if n > mostStilted {
		t.Errorf("%d phrases that are hard to read, want at most %d", n, mostStilted)
	}
}

func TestADocCommentBeginsWithItsName(t *testing.T) {
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.isTest() {
			continue
		}
		for _, d := range s.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				beginsWith(t, s, d.Doc, d.Name.Name)
			case *ast.GenDecl:
				// The comment of a group in parentheses is about the group.
				if spec, ok := d.Specs[0].(*ast.TypeSpec); ok && !d.Lparen.IsValid() {
					beginsWith(t, s, d.Doc, spec.Name.Name)
				}
			}
		}
	}
}

// beginsWith reports a doc comment that does not begin with name.
func beginsWith(t *testing.T, s *source, doc *ast.CommentGroup, name string) {
	t.Helper()
	// A test that other packages call may begin with what it tests, as in "testReadOnly: a session …".
	text, isTest := doc.Text(), strings.HasPrefix(name, "test")
	if text != "" && !strings.HasPrefix(text, name+" ") && !(isTest && strings.HasPrefix(text, name+": ")) {
		t.Errorf("%s: the comment of %s does not begin with its name", s.at(doc), name)
	}
}

var (
	fence       = regexp.MustCompile("^ *```(\\w*)")
	linkOrImage = regexp.MustCompile(`\]\([^)]*\)`)
)

// Tables, links, and commands with their output may be wider in Markdown.
func TestLinesOfSQLAndMarkdownAreShort(t *testing.T) {
	for _, ending := range []string{".sql", ".md"} {
		if err := eachFile(ending, func(path string) error {
			text, err := os.ReadFile(filepath.Join(root, path))
			language, inCode := "sql", ending == ".sql"
			for i, line := range strings.Split(string(text), "\n") {
				if f := fence.FindStringSubmatch(line); f != nil {
					inCode, language = !inCode, f[1]
				}
				if !inCode {
					line = linkOrImage.ReplaceAllString(line, "]")
				}
				wide := inCode && language != "sql" && language != "text" ||
					!inCode && strings.HasPrefix(line, "|")
				if n := len([]rune(line)) + 3*strings.Count(line, "\t"); n > mostColumns && !wide {
					t.Errorf("%s:%d: the line has %d columns, want at most %d", path, i+1, n, mostColumns)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// longTests lists the packages with tests of more than 60 lines or ten words. It only shrinks.
var longTests = map[string]bool{
	"internal/proxy/serve": true, "caddymodule/command": true,
	"traefikplugin": true,
}

var wordOfName = regexp.MustCompile(`[A-Z][a-z0-9]+|[A-Z]+`)

func TestTestsAreShort(t *testing.T) {
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, d := range s.Decls {
			test, ok := d.(*ast.FuncDecl)
			if !ok || !s.isTest() || longTests[s.dir] || !strings.HasPrefix(test.Name.Name, "Test") {
				continue
			}
			n := s.fset.Position(test.Body.Rbrace).Line - s.fset.Position(test.Body.Lbrace).Line - 1
			words := len(wordOfName.FindAllString(strings.TrimPrefix(test.Name.Name, "Test"), -1))
			if n > 60 || words > 10 {
				t.Errorf("%s: %s has %d lines and %d words, want at most 60 and 10", s.at(test),
					test.Name.Name, n, words)
			}
		}
	}
}
