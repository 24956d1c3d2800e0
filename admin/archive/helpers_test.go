package archive_test

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/parquet-go/parquet-go"

	"github.com/pgratelimit/pg-ratelimit/admin/archive"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/auditlog"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// firstDay is the first day of the audit log in these tests, and today is much later.
var (
	firstDay = time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	today    = time.Date(2026, 10, 15, 3, 0, 0, 0, time.UTC)
)

func day(n int) time.Time { return firstDay.AddDate(0, 0, n) }

// openAuditLog creates a database with an audit log that has days with rows, from day 0 on.
func openAuditLog(t testing.TB, days, rows int) (dsn string, conn *pgx.Conn) {
	t.Helper()
	dsn = cluster.Open(t, schema.File)
	conn = cluster.Connect(t, dsn)
	execute(t, conn, "UPDATE rate_limit_retention SET keep = '30 days' WHERE what = 'audit'")
	for n := range days {
		auditlog.Fill(t, conn, day(n), rows)
	}
	return dsn, conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if err := cluster.Exec(t.Context(), conn, sql, args...); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func queryInt(t testing.TB, conn *pgx.Conn, sql string) int64 {
	t.Helper()
	var n int64
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return n
}

// expectError fails the test unless err contains all texts.
func expectError(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one with %q", err, text)
		}
	}
}

func partitionName(d time.Time) string { return "rate_limit_audit_" + d.Format("20060102") }

// makePartition creates the partition of a day, as writers do.
func makePartition(t testing.TB, conn *pgx.Conn, d time.Time) {
	t.Helper()
	execute(t, conn, "SELECT rate_limit_make_partition($1::date)", d)
}

// detachFirstDay detaches the partition of day 0.
func detachFirstDay(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	execute(t, conn, "ALTER TABLE rate_limit_audit DETACH PARTITION "+partitionName(day(0)))
}

// options returns options that archive all days before day n into a folder.
func options(t testing.TB, dir string, n int) archive.Options {
	t.Helper()
	to, err := archive.NewDestination(dir)
	if err != nil {
		t.Fatal(err)
	}
	return archive.Options{Before: day(n), Destination: to, Now: today}
}

// mustRun archives, and fails the test on an error.
func mustRun(t testing.TB, conn *pgx.Conn, o archive.Options) []archive.Day {
	t.Helper()
	days, err := archive.Run(t.Context(), conn, o)
	if err != nil {
		t.Fatalf("%v: %+v", err, days)
	}
	return days
}

// sum has the number of some rows, and a checksum that does not depend on the order of the rows.
type sum struct {
	rows int64
	hash uint64
}

// add adds a row. A column with NULL counts like a missing column.
func (s *sum) add(row map[string]any) {
	for name, value := range row {
		switch value := value.(type) {
		case nil:
			delete(row, name)
		case time.Time:
			row[name] = value.UnixMicro()
		case netip.Prefix:
			row[name] = strings.TrimSuffix(value.String(), fmt.Sprint("/", value.Addr().BitLen()))
		case pgtype.Numeric:
			row[name], _ = value.Value()
		}
	}
	digest := md5.Sum(fmt.Appendf(nil, "%#v", row))
	s.rows++
	s.hash += binary.BigEndian.Uint64(digest[:])
}

// sumOfTable returns the sum of the rows of a table.
func sumOfTable(t testing.TB, conn *pgx.Conn, table string) sum {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT * FROM "+table)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		t.Fatal(err)
	}
	var s sum
	for _, row := range all {
		s.add(row)
	}
	return s
}

// files returns the names of the files in a folder, relative to it.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// sumOfFiles returns the sum of the rows of all files in a folder.
func sumOfFiles(t testing.TB, dir string) sum {
	t.Helper()
	var s sum
	for _, name := range files(t, dir) {
		rows, err := parquet.ReadFile[any](filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, row := range rows {
			s.add(row.(map[string]any))
		}
	}
	return s
}

// checkFiles fails the test unless the files in a folder have the rows of want.
func checkFiles(t testing.TB, dir string, want sum) {
	t.Helper()
	check.Equal(t, "the sum of the files", sumOfFiles(t, dir), want)
}

// summaryOf returns the result of each of days, with "dropped" after that of a dropped day.
func summaryOf(days []archive.Day) string {
	text := ""
	for _, d := range days {
		text += string(d.Result) + ", "
		if d.Dropped {
			text = strings.TrimSuffix(text, ", ") + " dropped, "
		}
	}
	return strings.TrimSuffix(text, ", ")
}

// expectProblem runs an archive that must skip the first day because of a problem that contains text.
func expectProblem(t *testing.T, conn *pgx.Conn, o archive.Options, text string) {
	t.Helper()
	days, err := archive.Run(t.Context(), conn, o)
	if err == nil || len(days) == 0 {
		t.Fatalf("Run returned the days %+v, error %v, want a day and an error", days, err)
	}
	if d := days[0]; d.Dropped || !strings.Contains(d.Problem, text) {
		t.Errorf("the first day is %+v, want it not dropped, with a problem that contains %q", d, text)
	}
}
