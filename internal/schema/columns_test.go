package schema_test

import (
	_ "embed"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// The page of SQL has the comments of the views, of the functions that pages name, of those that run with the
// rights of their owner, and of tables and their columns.
func TestSQLPageDescribesTablesViewsAndFunctions(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("docs has %d pages, error %v, want at least 7", len(pages), err)
	}
	name, named := regexp.MustCompile(`rate_limit_\w+`), []string(nil)
	for _, page := range append(pages, "../../docs/generated/commands.md") {
		named = append(named, name.FindAllString(sqltest.ReadFile(t, page), -1)...)
	}
	s, may := sqltest.New(t), mayCall("proxy")+", "+mayCall("administrator")
	rows := func(catalog, row, from string) string {
		return s.Query("SELECT string_agg(concat_ws(' | ', "+row+", replace(obj_description(oid, '"+catalog+
			`'), '|', '\|') || ' |'), E'\n' ORDER BY name COLLATE "C") FROM (`+from+") AS r") + "\n"
	}
	golden.CheckPage(t, "../../docs/generated/sql.md", "testdata/sql.md", map[string]string{
		"VIEWS": rows("pg_class", "'| `' || name || '`'", `SELECT oid, relname AS name FROM pg_class
			WHERE relname LIKE 'rate\_limit\_%' AND relkind = 'v'`),
		"FUNCTIONS": rows("pg_proc", "'| `' || name || '(' || args || ')`', "+may, `SELECT oid,
			proname AS name, replace(regexp_replace(pg_get_function_arguments(oid),
				' DEFAULT [^,]*', '', 'g'),
				'timestamp with time zone', 'timestamptz') AS args
			FROM pg_proc WHERE NOT prosecdef AND proname = ANY ('{`+strings.Join(named, ",")+`}')`),
		"OWNERS": rows("pg_proc", "'| `' || name || '`', "+may, `SELECT oid,
			proname AS name FROM pg_proc WHERE prosecdef AND proname LIKE 'rate\_limit\_%'`),
		"TABLES": s.Query(tablesSQL) + "\n",
	})
}

// mayCall returns SQL that says whether rate_limit_grant lets a kind of role call the function oid. All roles
// may call functions that compute.
func mayCall(kind string) string {
	return `CASE WHEN EXISTS (SELECT FROM rate_limit_rights('` + kind + `') g
		WHERE g.object = 'FUNCTION ' || r.oid::regprocedure) OR EXISTS (SELECT FROM pg_proc f
		WHERE f.oid = r.oid AND NOT f.prosecdef AND rate_limit_is_for_all(f)) THEN 'yes' ELSE 'no' END`
}

// tablesSQL returns a table of the columns of each table that operators read or change. Values of the policy
// that the server fills are left out.
//
//go:embed testdata/tables.sql
var tablesSQL string
