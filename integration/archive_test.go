package integration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/auditlog"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

// `make test-archive` sets these flags, to archive more rows, and to archive to S3 as well.
var (
	archiveRows    = flag.Int("archive-rows", 30_000, "how many rows the tests of the archive have")
	archiveGateway = flag.String("archive-gateway", "",
		"the program versitygw, for an archive in S3 (default: only in a folder)")
)

const (
	archiveDays      = 5
	archiveKills     = 10
	maxArchiveMemory = 200 << 20 // bytes, of Caddy
)

// archiveTarget is the place of an archive: the value of --to, and the folder of its files.
type archiveTarget struct {
	to, dir string
	env     []string
}

// archiveTargets returns a new folder, and a new bucket of a server for S3 if there is one.
func archiveTargets(t *testing.T) []archiveTarget {
	t.Helper()
	dir := t.TempDir()
	targets := []archiveTarget{{to: dir, dir: dir}}
	if *archiveGateway == "" {
		return targets
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "logs"), 0o755); err != nil { // a bucket is a folder
		t.Fatal(err)
	}
	address := harness.FreeAddress(t)
	gateway := harness.Start(t, harness.Program{
		Path: *archiveGateway, Args: []string{"--port", address, "--access", "archive", "--secret",
			"archive-secret", "--quiet", "posix", root},
	})
	gateway.AwaitAddress(t, address)
	return append(targets, archiveTarget{
		to: "s3://logs/limits", dir: filepath.Join(root, "logs", "limits"),
		env: []string{"AWS_ACCESS_KEY_ID=archive", "AWS_SECRET_ACCESS_KEY=archive-secret",
			"AWS_REGION=us-east-1", "AWS_ENDPOINT_URL=http://" + address},
	})
}

// archiveCommand returns the command `caddy pg-ratelimit archive` with further args.
func archiveCommand(t *testing.T, dsn string, target archiveTarget, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(buildCaddy(t), append([]string{"pg-ratelimit", "archive", "--dsn", dsn, "--before",
		"30d", "--to", target.to}, args...)...)
	cmd.Env = append(os.Environ(), target.env...)
	cmd.Dir = t.TempDir()
	return cmd
}

// begin starts a program. When the program has ended, the channel ended receives its error, and out has its
// output.
func begin(t *testing.T, cmd *exec.Cmd) (ended chan error, out *bytes.Buffer) {
	t.Helper()
	out = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended, out
}

// archiveAll runs the command to its end, and returns its peak memory, in bytes.
func archiveAll(t *testing.T, cmd *exec.Cmd) int64 {
	t.Helper()
	ended, out := begin(t, cmd)
	peak := int64(0)
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Logf("%s", out.String())
			return peak
		case <-time.After(20 * time.Millisecond):
			peak = max(peak, peakMemory(cmd.Process.Pid))
		}
	}
}

// peakMemory returns the peak memory of a process, in bytes, or 0 if it has ended or the system has no /proc.
func peakMemory(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kB, _ := strconv.ParseInt(value, 10, 64)
	return kB << 10
}

// oldDays creates an audit log and a ledger of old days.
func oldDays(t *testing.T) (dsn string, conn *pgx.Conn) {
	t.Helper()
	dsn = cluster.Open(t)
	conn = cluster.Connect(t, dsn)
	sql(t, conn, schema.File)
	// The archive alone drops days.
	sql(t, conn, "DELETE FROM rate_limit_retention WHERE what = 'audit'")
	sql(t, conn, "UPDATE rate_limit_ledger_retention SET keep = '1000 years'")
	fillDays(t, conn)
	return dsn, conn
}

func fillDays(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for n := range archiveDays {
		auditlog.Fill(t, conn, today.AddDate(0, 0, -40-n), *archiveRows/archiveDays)
		auditlog.FillLedger(t, conn, today.AddDate(0, 0, -40-n), *archiveRows/archiveDays)
	}
	// Each new row differs from all earlier rows.
	sql(t, conn, "UPDATE rate_limit_audit SET node = $1", fmt.Sprint(time.Now().UnixNano()))
	expectRows(t, conn)
}

// DuckDB reads all values of the audit log and of the ledger from the archive, in a folder and on S3. The
// command takes a bounded amount of memory.
func TestDuckDBReadsTheArchive(t *testing.T) {
	t.Parallel()
	dsn, conn := oldDays(t)
	for _, target := range archiveTargets(t) {
		cmd := archiveCommand(t, dsn, target)
		peak := archiveAll(t, cmd)
		checkArchive(t, conn, target.dir)
		if peak > maxArchiveMemory {
			t.Errorf("the command had %d MB of memory, want %d at most", peak>>20, maxArchiveMemory>>20)
		}
	}
}

// A command that archives and drops days is killed at random moments, and runs again. At the end, the files
// have each row once, and no day is left. If a run ends before it is killed, the same days get new rows,
// which the next run writes into second files.
func TestAnArchiveThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	work := time.Second + time.Duration(*archiveRows)*15*time.Microsecond
	random := seed.New(t)
	for _, target := range archiveTargets(t) {
		dsn, conn := oldDays(t)
		for kills := 0; kills < archiveKills; {
			cmd := archiveCommand(t, dsn, target, "--drop")
			after := 100*time.Millisecond + time.Duration(random.Int64N(int64(work/archiveKills)))
			switch killed, failure := killAfter(t, cmd, after); {
			case killed:
				kills++
			case failure == "":
				fillDays(t, conn)
			// The session of a killed archive lasts up to a second, and refuses another archive.
			case !strings.Contains(failure, "another archive"):
				t.Fatalf("the archive fails with %s, want none, or another archive", failure)
			}
		}
		archiveAll(t, archiveCommand(t, dsn, target, "--drop"))
		checkArchive(t, conn, target.dir)
		left := cluster.Query[int64](t, dsn,
			"SELECT count(*) FROM pg_class WHERE relname ~ '^rate_limit_(audit|ledger)_[0-9]' "+
				"AND relkind = 'r' AND right(relname, 8) < to_char(now() - interval '9 days', 'YYYYMMDD')")
		check.Equal(t, target.to+": partitions left", left, 0)
	}
}

// killAfter runs a program and kills it after a time. If the program ends earlier, killed is false. If it
// then has failed, failure is its error and its output.
func killAfter(t *testing.T, cmd *exec.Cmd, after time.Duration) (killed bool, failure string) {
	t.Helper()
	ended, out := begin(t, cmd)
	select {
	case err := <-ended:
		if err != nil {
			failure = err.Error() + ": " + out.String()
		}
		return false, failure
	case <-time.After(after):
		_ = cmd.Process.Kill() // unless it has just ended
		return <-ended != nil, ""
	}
}

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
	check.Equal(t, "the sums of the files", len(got), len(want))
	for name := range want {
		check.Equal(t, name+" of the files", got[name], want[name])
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
