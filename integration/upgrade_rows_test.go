package integration

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// rowsOfVersions fills tables of a numbered version. laterRows has those of tables that the first one lacks.
//
//go:embed testdata/rows_of_versions.sql
var rowsOfVersions string

var laterRows = map[string]string{
	"rate_limit_lost":      "INSERT INTO rate_limit_lost (processes, process, units) VALUES ('p', 1, '{}')",
	"rate_limit_forgotten": `INSERT INTO rate_limit_forgotten (digest) VALUES ('\x00')`,
}

// rowsOfTables returns a query for all rows of a table, with the columns that it has now.
const rowsOfTables = `SELECT c.relname,
	format('SELECT coalesce(string_agg(concat_ws(''|'', %s), E''\n''), '''') FROM %s',
		string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), c.oid::regclass)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	WHERE c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p') AND NOT c.relispartition GROUP BY c.oid`

// ofPartition matches a line of the catalog about a partition of a day.
var ofPartition = regexp.MustCompile(`(?m)^.*_20[0-9]{6}.*\n?`)

// catalogOf returns the catalog of a database, without the partitions of days.
func catalogOf(s *sqltest.DB) string {
	s.Exec("SELECT rate_limit_upkeep()")
	return ofPartition.ReplaceAllString(s.Query(sqltest.CatalogSQL), "")
}

// No commit has tables of a higher revision than this one, which this migrate would take for those of a newer
// program.
func TestRevisionsOnlyGrow(t *testing.T) {
	log := run(t, "..", "git", "log", "-p", "--format=", "--", "internal/schema/digests.txt")
	digests, err := os.ReadFile("../internal/schema/digests.txt")
	if err != nil {
		t.Fatal(err)
	}
	revisions := regexp.MustCompile(`(?m)^\+(revision ([0-9]+) [0-9a-f]{64})$`).FindAllStringSubmatch(log, -1)
	if len(revisions) < 2 {
		t.Fatal("the history has no revisions: clone it in full")
	}
	for _, revision := range revisions {
		n, err := strconv.Atoi(revision[2])
		if err != nil || n >= schema.ThisRevision && !strings.Contains(string(digests), revision[1]) {
			t.Errorf("a commit has the %s, this program the revision %d", revision[1], schema.ThisRevision)
		}
	}
}

// On tables of each numbered version, today's program decides requests of each kind. With rows in every
// table, they become those of a new database, by migrate and by psql, and keep all rows.
func TestTablesOfEachVersionAreUpgraded(t *testing.T) {
	today, fresh := pgRatelimit(t), sqltest.Open(t, schema.File)
	want := catalogOf(fresh)
	file := filepath.Join(t.TempDir(), "schema.sql")
	if err := os.WriteFile(file, []byte(schema.File), 0o600); err != nil {
		t.Fatal(err)
	}
	commits := run(t, "..", "git", "log", "--format=%h", "--diff-filter=A", "--", "internal/schema/0*.sql")
	if !strings.Contains(commits, "\n") {
		t.Fatal("the history has no commits with numbered files: clone it in full")
	}
	added := strings.Fields(commits) // the newest first
	for _, commit := range added[:len(added)-1] {
		sql := run(t, treeOf(t, commit+"^"), "go", "run", "./internal/release", "-schema")
		t.Run("decisions before "+commit, func(t *testing.T) { checkKinds(t, sql, today) })
		for way, upgrade := range map[string]func(dsn string){
			"migrate": func(dsn string) { run(t, ".", today, "migrate", "--dsn", dsn) },
			"psql": func(dsn string) {
				run(t, ".", cluster.Tool(t, "psql"), "-v", "ON_ERROR_STOP=1", "-qf", file, dsn)
			},
		} {
			t.Run("before "+commit+", "+way, func(t *testing.T) {
				s := sqltest.Open(t, sql, rowsOfVersions)
				rows := fillRows(t, s)
				upgrade(s.DSN)
				for query, before := range rows {
					check.Equal(t, query, s.Query(query), before)
				}
				if got := catalogOf(s); got != want {
					t.Errorf("an upgrade and a new database differ in\n%s", sqltest.DifferingLines(got, want))
				}
			})
		}
	}
}

// fillRows fills the tables that the first version lacks, and returns the rows of all tables by query.
func fillRows(t *testing.T, s *sqltest.DB) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for line := range strings.SplitSeq(s.Query(rowsOfTables), "\n") {
		table, query, _ := strings.Cut(line, " ")
		if later := laterRows[table]; later != "" {
			s.Exec(later)
		}
		if rows[query] = s.Query(query); rows[query] == "" {
			t.Errorf("%s has no rows: add some to rowsOfVersions or laterRows", table)
		}
	}
	return rows
}
