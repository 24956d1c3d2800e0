package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// maxColumns is the length of the longest line of SQL and Markdown, with tabs of four columns.
// Golangci-lint checks Go.
const maxColumns = 110

// source is a Go file.
type source struct {
	dir, path string
	fset      *token.FileSet
	*ast.File
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// position returns the position of a node for messages.
func (s *source) position(n ast.Node) token.Position { return s.fset.Position(n.Pos()) }

// sources returns all Go files in the repository.
func sources(t *testing.T) []*source {
	t.Helper()
	files, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var readSources = sync.OnceValues(func() (files []*source, err error) {
	err = eachFile(".go", func(path, text string) error {
		s := &source{dir: filepath.ToSlash(filepath.Dir(path)), path: path, fset: token.NewFileSet()}
		s.File, err = parser.ParseFile(s.fset, path, text, parser.ParseComments)
		files = append(files, s)
		return err
	})
	return files, err
})

// eachFile calls f with the text of each file in the repository with a path that ends with ending.
func eachFile(ending string, f func(path, text string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() != ".." && (d.Name()[0] == '.' || d.Name() == "bin") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = f(path[len(root)+1:], string(text))
		}
		return err
	})
}

// unclear matches words that send the reader back for a noun, or that have two meanings. Texts for users have
// none: the SQL files with the comments of tables and functions, and the strings of programs.
var unclear = regexp.MustCompile(`\b(that of|those of|at once|the begin|so many|so much|in vain|of which|` +
	`whose|whom)\b`)

// sqlBreak matches a line break in a literal or a comment of SQL.
var sqlBreak = regexp.MustCompile(`' *\n\s*'|\n\s*--|\s+`)

// The strings of programs and the SQL files have no match of unclear.
func TestTextsForUsersAreInPlainEnglish(t *testing.T) {
	eachString(t, func(place, text string) { checkClear(t, place, text) })
	err := eachFile(".sql", func(path, sql string) error {
		checkClear(t, path, sqlBreak.ReplaceAllString(sql, " "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eachString calls f for each string of the programs, with its position.
func eachString(t *testing.T, f func(place, text string)) {
	t.Helper()
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || s.isTest() || s.dir == "internal/testkit/imports" {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			f(s.position(n).String(), text)
			return true
		})
	}
}

// checkClear reports the unclear words of a text.
func checkClear(t *testing.T, place, text string) {
	t.Helper()
	for _, i := range unclear.FindAllStringIndex(text, -1) {
		start, end := max(0, i[0]-40), min(len(text), i[1]+40)
		t.Errorf("%s: …%s…: %q is unclear, name the thing", place, text[start:end], text[i[0]:i[1]])
	}
}

var (
	fence       = regexp.MustCompile("^ *```(\\w*)")
	linkOrImage = regexp.MustCompile(`\]\([^)]*\)`)
)

// A line of SQL or Markdown has at most maxColumns columns. In Markdown, tables, links, and commands with
// their output may be wider.
func TestLinesOfSQLAndMarkdownAreShort(t *testing.T) {
	for _, ending := range []string{".sql", ".md"} {
		if err := eachFile(ending, func(path, text string) error {
			language, inCode := "sql", ending == ".sql"
			for i, line := range strings.Split(text, "\n") {
				if f := fence.FindStringSubmatch(line); f != nil {
					inCode, language = !inCode, f[1]
				}
				if !inCode {
					line = linkOrImage.ReplaceAllString(line, "]")
				}
				wide := inCode && language != "sql" && language != "text" ||
					!inCode && strings.HasPrefix(line, "|")
				if n := len([]rune(line)) + 3*strings.Count(line, "\t"); n > maxColumns && !wide {
					t.Errorf("%s:%d: the line has %d columns, want at most %d", path, i+1, n, maxColumns)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
