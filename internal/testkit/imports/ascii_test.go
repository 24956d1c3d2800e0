package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// sql finds text that is SQL.
var sql = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|RAISE|UNION ALL)\b`)

// All SQL is ASCII: a database in another encoding than UTF-8 does not accept other characters.
func TestSQLIsASCII(t *testing.T) {
	checked := 0
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			value, err := strconv.Unquote(text.Value)
			if err != nil || !sql.MatchString(value) {
				return true
			}
			checked++
			for _, r := range value {
				if r > 126 {
					t.Errorf("%s: SQL with the character %q", files.Position(text.Pos()), r)
					return true
				}
			}
			return true
		})
		return nil
	})
	if err != nil || checked < 100 {
		t.Fatalf("%d texts of SQL: %v", checked, err)
	}
}
