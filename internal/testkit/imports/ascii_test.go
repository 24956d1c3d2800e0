package imports

import (
	"regexp"
	"strings"
	"testing"
)

// sql matches SQL.
var sql = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|RAISE|UNION ALL)\b`)

// All SQL is ASCII, because a database in another encoding than UTF-8 does not accept other characters.
func TestSQLIsASCII(t *testing.T) {
	checked := 0
	eachString(t, func(place, text string) {
		if !sql.MatchString(text) {
			return
		}
		checked++
		if i := strings.IndexFunc(text, func(r rune) bool { return r > 126 }); i >= 0 {
			t.Errorf("%s: SQL with the character %.1q, want ASCII", place, text[i:])
		}
	})
	if checked < 100 {
		t.Fatalf("%d texts of SQL, want at least 100", checked)
	}
}
