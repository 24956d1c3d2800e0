package imports

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"
)

// sql matches SQL.
var sql = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|RAISE|UNION ALL)\b`)

// All SQL is ASCII, because a database in another encoding than UTF-8 does not accept other characters.
func TestSQLIsASCII(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
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
					t.Errorf("%s: SQL with the character %q, want ASCII", s.position(n), r)
					return true
				}
			}
			return true
		})
	}
	if checked < 100 {
		t.Fatalf("%d texts of SQL, want at least 100", checked)
	}
}
