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

// auditColumns has the columns of rate_limit_audit, and expressions with which Postgres and DuckDB make the
// same text of a value. A weight is compared as a number.
var auditColumns = []struct{ name, postgres, duckdb string }{
	{"time", "(extract(epoch FROM time) * 1000000)::bigint", "epoch_us(time)"},
	{"cost", "", ""}, {"count", "", ""}, {"quota", "", ""}, {"remaining", "", ""}, {"key_id", "", ""},
	{"retry_after_ms", "", ""}, {"duration_us", "", ""},
	{"status", "", ""}, {"outcome", "", ""}, {"reason", "", ""}, {"prefix", "", ""}, {"limit_name", "", ""},
	{"key", "", ""}, {"user_id", "", ""}, {"tier", "", ""},
	{"address", "regexp_replace(address::text, '^([^:]*)/32$|^(.*)/128$', '\\1\\2')", ""},
	{"host", "", ""}, {"method", "", ""}, {"path", "", ""}, {"node", "", ""}, {"region", "", ""},
	{"also", "cardinality(also) || ':' || array_to_string(also, '|', '<null>')",
		"len(also) || ':' || coalesce(array_to_string(list_transform(also, lambda x: coalesce(x, " +
			"'<null>')), '|'), '')"},
}

// fillAudit adds rows to a day of the audit log: rows as of traffic, and among them every kind of value of
// each column.
func fillAudit(t *testing.T, conn *pgx.Conn, day time.Time, rows int) {
	t.Helper()
	sql(t, conn, `SELECT rate_limit_make_partition($1::date)`, day)
	sql(t, conn, `
INSERT INTO rate_limit_audit
SELECT $1::timestamptz + i * (interval '1 day' / $2),
	1, CASE WHEN i % 10 = 0 THEN 1 + i % 50 ELSE 1 END, 1000, i % 1000, CASE WHEN i % 3 = 0
	THEN i % 20000 END,
	CASE WHEN i % 2 = 0 THEN hashint4(i) & 65535 END, 100 + (hashint4(i) & 4095),
	CASE i % 1000 WHEN 0 THEN 'Infinity' WHEN 1 THEN '-Infinity' WHEN 2 THEN 0.1 WHEN 3 THEN 1e-300 WHEN 4
	THEN 1.7976931348623157e308 WHEN 5 THEN 100 ELSE 1 END::float8,
	CASE WHEN i % 2 = 0 THEN 429 END, CASE WHEN i % 2 = 0 THEN 'limited' ELSE 'allowed' END,
	CASE WHEN i % 500 = 0 THEN 'no_quota' WHEN i % 500 = 1 THEN '' END, 'rule/free', 'per_hour',
	'user-' || (hashint4(i) & 16383),
	'user-' || (hashint4(i) & 16383), 'free',
	CASE WHEN i % 7 = 0 THEN NULL WHEN i % 7 = 1 THEN '2001:db8::' || to_hex(i & 65535) WHEN i % 7 = 2
	THEN '2001:db8:1::/64' WHEN i % 7 = 3 THEN '203.0.113.0/24'
		ELSE '198.51.' || (i & 255) || '.' || (hashint4(i) & 255) END::inet,
	'api.example.com', 'GET', '/v1/items/' || (hashint4(i) & 1048575) || CASE WHEN i % 1000 = 7
	THEN '/é€😀"\,' || repeat('x', 180) ELSE '' END,
	'proxy-' || i % 3, CASE WHEN i % 2 = 0 THEN 'eu-central' END,
	CASE i % 100 WHEN 0 THEN '{}' WHEN 1 THEN ARRAY['login', '192.0.2.1'] WHEN 2 THEN ARRAY['', NULL, 'x,"y"',
	'{}'] END
FROM generate_series(0, $2::int - 1) i`, day, rows)
}

func sql(t *testing.T, conn *pgx.Conn, text string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// auditSums returns for each column the number of rows, of values, and a checksum, and the number of rows by
// the bits of the weight. hash has %s for the text.
func auditSums(t *testing.T, query func(sql string) [][]string, from, hash, text string,
	expression func(column int) string) map[string]string {
	t.Helper()
	var parts []string
	for i, c := range auditColumns {
		sum := fmt.Sprintf(hash, "("+cmp.Or(expression(i), c.name)+")::"+text)
		parts = append(parts, fmt.Sprintf("SELECT '%s', count(*) || ' ' || count(%[1]s) || ' ' || "+
			"coalesce(sum(%[2]s), 0) FROM %[3]s", c.name, sum, from))
	}
	sums := map[string]string{}
	for _, row := range query(strings.Join(parts, " UNION ALL ")) {
		sums[row[0]] = row[1]
	}
	for _, row := range query(fmt.Sprintf("SELECT weight::%s, count(*)::%[1]s FROM %[2]s GROUP BY 1", text,
		from)) {
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
	return auditSums(t, query, table, "('x' || substr(md5(%s), 1, 8))::bit(32)::bigint", "text",
		func(i int) string { return auditColumns[i].postgres })
}

// duckdbSums computes the checksums of the files in a folder in DuckDB.
func duckdbSums(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := "read_parquet('" + filepath.ToSlash(dir) + "/audit/*/*/*.parquet')"
	return auditSums(t, func(sql string) [][]string { return duckdb(t, sql) }, files,
		"('0x' || substr(md5(%s), 1, 8))::bigint", "varchar",
		func(i int) string { return auditColumns[i].duckdb })
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
