package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// archived maps a folder of the archive to the rows of which it has copies.
var archived = map[string]string{"audit": "SELECT * FROM rate_limit_audit",
	"ledger": "SELECT * FROM rate_limit_ledger_rows()"}

// expectRows adds the rows of the database to those that the archive must have.
func expectRows(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for folder, rows := range archived {
		sql(t, conn, "CREATE UNLOGGED TABLE IF NOT EXISTS expected_"+folder+" AS "+rows+" WITH NO DATA")
		sql(t, conn, "INSERT INTO expected_"+folder+" "+rows)
	}
}

// checkArchive compares the files in a folder with the rows of expectRows.
func checkArchive(t *testing.T, conn *pgx.Conn, dir string) {
	t.Helper()
	for folder := range archived {
		compare(t, postgresSums(t, conn, "expected_"+folder), duckdbSums(t, dir+"/"+folder))
	}
}

// auditTexts maps a column to the expressions with which Postgres and DuckDB convert its values to the same
// text. Casts to text convert the other columns to the same text. Weights are compared as numbers.
var auditTexts = map[string]struct{ postgres, duckdb string }{
	"time":          {"(extract(epoch FROM time) * 1000000)::bigint", "epoch_us(time)"},
	"address":       {"regexp_replace(address::text, '^([^:]*)/32$|^(.*)/128$', '\\1\\2')", ""},
	"also":          listText("also"),
	"ancestors":     listText("ancestors"),
	"corrects_time": {"(extract(epoch FROM corrects_time) * 1000000)::bigint", "epoch_us(corrects_time)"},
}

func listText(column string) struct{ postgres, duckdb string } {
	return struct{ postgres, duckdb string }{
		"cardinality(" + column + ") || ':' || array_to_string(" + column + ", '|', '<null>')",
		"len(" + column + ") || ':' || coalesce(array_to_string(list_transform(" + column +
			", lambda x: coalesce(x, '<null>')), '|'), '')"}
}

func sql(t *testing.T, conn *pgx.Conn, text string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// auditSums returns the number of rows, the number of values and a checksum of each column, the sum of the
// money, and the number of rows of each weight. columns is a query for the names of the columns. table is the
// SQL of the table or files with the rows. In hash, %s stands for a column's text, which has the type
// textType.
func auditSums(t *testing.T, query func(sql string) [][]string, columns, table, hash, textType string,
	expression func(column string) string) map[string]string {
	t.Helper()
	var parts []string
	weights := ""
	for _, row := range query(columns) {
		c := row[0]
		if c == "weight" {
			weights = fmt.Sprintf("SELECT weight::%s, count(*)::%[1]s FROM %[2]s GROUP BY 1", textType, table)
			continue
		}
		sum := fmt.Sprintf(hash, "("+cmp.Or(expression(c), `"`+c+`"`)+")::"+textType)
		parts = append(parts, fmt.Sprintf(`SELECT '%s', count(*) || ' ' || count("%[1]s") || ' ' || `+
			"coalesce(sum(%[2]s), 0) FROM %[3]s", c, sum, table))
		if c == "money" {
			parts = append(parts, fmt.Sprintf("SELECT 'all money', sum(money)::%s FROM %s", textType, table))
		}
	}
	sums := map[string]string{}
	for _, row := range query(strings.Join(parts, " UNION ALL ")) {
		sums[row[0]] = row[1]
	}
	if weights == "" {
		return sums
	}
	for _, row := range query(weights) {
		weight, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		sums[fmt.Sprint("weight ", math.Float64bits(weight))] = row[1]
	}
	return sums
}

// compare reports the sums that differ.
func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("the files have %d sums, want %d, as the database", len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: the files have %s, want %s, as the database", name, got[name], want[name])
		}
	}
}

// postgresSums computes the checksums of a table in Postgres.
func postgresSums(t *testing.T, conn *pgx.Conn, table string) map[string]string {
	t.Helper()
	query := func(sql string) (rows [][]string) {
		result := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, nil).Read()
		if result.Err != nil {
			t.Fatalf("%v\n%s", result.Err, sql)
		}
		for _, row := range result.Rows {
			rows = append(rows, []string{string(row[0]), string(row[1])})
		}
		return rows
	}
	columns := "SELECT attname, '' FROM pg_attribute WHERE attrelid = '" + table +
		"'::regclass AND attnum > 0"
	return auditSums(t, query, columns, table, "('x' || substr(md5(%s), 1, 8))::bit(32)::bigint", "text",
		func(column string) string { return auditTexts[column].postgres })
}

// duckdbSums computes the checksums of the files in a folder in DuckDB.
func duckdbSums(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := "read_parquet('" + filepath.ToSlash(dir) + "/*/*/*.parquet')"
	return auditSums(t, func(sql string) [][]string { return duckdb(t, sql) },
		"SELECT column_name, '' FROM (DESCRIBE SELECT * FROM "+files+")", files,
		"('0x' || substr(md5(%s), 1, 8))::bigint", "varchar",
		func(column string) string { return auditTexts[column].duckdb })
}

// duckdb runs a query in DuckDB, through a Node program.
func duckdb(t *testing.T, query string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "query.mjs")
	cmd.Dir = nodeFolder(t, "duckdb", "@duckdb/node-api@1.5.6-r.1")
	cmd.Stdin = strings.NewReader(query)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("DuckDB: %v\n%s\n%s", err, stderr.String(), query)
	}
	var rows [][]string
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatalf("DuckDB printed %q: %v", out, err)
	}
	return rows
}
