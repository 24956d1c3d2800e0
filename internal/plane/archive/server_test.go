package archive_test

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// firstDay is the first day of the audit log in these tests, and today is much later.
var (
	firstDay = time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	today    = time.Date(2026, 10, 15, 3, 0, 0, 0, time.UTC)
)

func day(n int) time.Time { return firstDay.AddDate(0, 0, n) }

func open(t testing.TB) (dsn string, conn *pgx.Conn) {
	t.Helper()
	dsn = cluster.Open(t, schema.History)
	conn = cluster.Connect(t, dsn)
	execute(t, conn, "UPDATE rate_limit_retention SET keep = '30 days' WHERE what = 'audit'")
	return dsn, conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func number(t testing.TB, conn *pgx.Conn, sql string) int64 {
	t.Helper()
	var n int64
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return n
}

func partitionName(d time.Time) string { return "rate_limit_audit_" + d.Format("20060102") }

// makePartition creates the partition of a day, as writers do.
func makePartition(t testing.TB, conn *pgx.Conn, d time.Time) {
	t.Helper()
	execute(t, conn, "SELECT rate_limit_make_partition($1::date)", d)
}

// fill adds rows to a day, with all kinds of values: NULL, the limits of each type, empty and long texts,
// several scripts, addresses and networks of both families, and arrays.
func fill(t testing.TB, conn *pgx.Conn, d time.Time, rows int) {
	t.Helper()
	execute(t, conn, `
INSERT INTO rate_limit_audit
SELECT $1::timestamptz + (i * 7919 % $2) * (interval '1 day' / $2),
	1 + i % 5, CASE WHEN i % 10 = 0 THEN 1000 ELSE 1 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN 9223372036854775807 ELSE 1000 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN -9223372036854775808 ELSE i % 1000 END,
	CASE WHEN i % 3 = 0 THEN i END, CASE WHEN i % 5 = 0 THEN 1000 * i END, (i * 31) % 5000,
	(ARRAY[1, 100, 0.1, 'Infinity', '-0', 1e-300, '-Infinity', 1e300]::float8[])[1 + i % 8],
	CASE i % 3 WHEN 0 THEN 429 WHEN 1 THEN -2147483648 END,
	(ARRAY['allowed', 'limited', 'blocked', 'rejected', 'shadow', 'error'])[1 + i % 6],
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'no_quota' END,
	CASE i % 3 WHEN 0 THEN '' WHEN 1 THEN 'login' ELSE 'rule/frei-für-alle' END,
	CASE WHEN i % 2 = 0 THEN 'hour' END, md5(i::text), CASE WHEN i % 4 > 0 THEN 'user-' || i % 977 END, CASE
		WHEN i % 4 > 0 THEN 'free' END,
	CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN '192.0.2.1' WHEN 2 THEN '2001:db8::1' WHEN 3 THEN '192.0.2.0/24'
		WHEN 4 THEN '2001:db8::/56'
		WHEN 5 THEN '::ffff:192.0.2.9' ELSE '203.0.113.77/8' END::inet,
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'example.com'
		ELSE 'пример.рф' END, (ARRAY['GET', 'POST', NULL])[1 + i % 3],
	'/' || repeat('é€😀"\', i % 41) || i, 'node-' || i % 3, CASE WHEN i % 2 = 0 THEN 'eu' END,
	CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '{}' WHEN 2 THEN ARRAY['login', '192.0.2.1'] WHEN 3
		THEN ARRAY['', NULL, 'x,"y"', '{}'] ELSE ARRAY['one'] END
FROM generate_series(1, $2::int) i`, d, rows)
}

// makeDays creates full days, from day 0 on.
func makeDays(t testing.TB, conn *pgx.Conn, days, rows int) {
	t.Helper()
	for n := range days {
		makePartition(t, conn, day(n))
		fill(t, conn, day(n), rows)
	}
}

// options returns options that archive all days before day n into a folder.
func options(t testing.TB, dir string, n int) archive.Options {
	t.Helper()
	to, err := archive.NewDestination(dir)
	if err != nil {
		t.Fatal(err)
	}
	return archive.Options{Before: day(n), To: to, Now: today}
}

// run archives, and fails the test on an error.
func run(t testing.TB, conn *pgx.Conn, o archive.Options) []archive.Day {
	t.Helper()
	days, err := archive.Run(t.Context(), conn, o)
	if err != nil {
		t.Fatalf("%v: %+v", err, days)
	}
	return days
}

// sum has the number of rows, and a checksum that does not depend on their order.
type sum struct {
	rows int64
	hash uint64
}

func (s *sum) add(text string) {
	digest := md5.Sum([]byte(text))
	s.rows++
	s.hash += binary.BigEndian.Uint64(digest[:])
}

// auditRow is a row as a reader with a struct reads it, independently of the package.
type auditRow struct {
	Time         time.Time `parquet:"time,timestamp(microsecond:utc)"`
	Cost         int64     `parquet:"cost"`
	Count        int64     `parquet:"count"`
	Quota        *int64    `parquet:"quota,optional"`
	Remaining    *int64    `parquet:"remaining,optional"`
	KeyID        *int64    `parquet:"key_id,optional"`
	RetryAfterMS *int64    `parquet:"retry_after_ms,optional"`
	DurationUS   int64     `parquet:"duration_us"`
	Weight       float64   `parquet:"weight"`
	Status       *int32    `parquet:"status,optional"`
	Decision     string    `parquet:"outcome"`
	Reason       *string   `parquet:"reason,optional"`
	Prefix       string    `parquet:"prefix"`
	LimitName    *string   `parquet:"limit_name,optional"`
	Key          *string   `parquet:"key,optional"`
	UserID       *string   `parquet:"user_id,optional"`
	Tier         *string   `parquet:"tier,optional"`
	Address      *string   `parquet:"address,optional"`
	Host         *string   `parquet:"host,optional"`
	Method       *string   `parquet:"method,optional"`
	Path         *string   `parquet:"path,optional"`
	Node         string    `parquet:"node"`
	Region       *string   `parquet:"region,optional"`
	Also         []*string `parquet:"also,list,optional"`
}

// text returns the row as text, equal for equal rows.
func (r *auditRow) text() string {
	return fmt.Sprintf("%d %d %d %s %s %s %s %d %x %s %q %s %q %s %s %s %s %s %s %s %s %q %s %s",
		r.Time.UnixMicro(), r.Cost, r.Count, whole(r.Quota), whole(r.Remaining), whole(r.KeyID),
		whole(r.RetryAfterMS), r.DurationUS, math.Float64bits(r.Weight),
		whole(r.Status), r.Decision, str(r.Reason), r.Prefix, str(r.LimitName), str(r.Key), str(r.UserID),
		str(r.Tier), str(r.Address), str(r.Host), str(r.Method),
		str(r.Path), r.Node, str(r.Region), list(r.Also))
}

func whole[T int32 | int64](v *T) string {
	if v == nil {
		return "NULL"
	}
	return fmt.Sprint(*v)
}

func str(v *string) string {
	if v == nil {
		return "NULL"
	}
	return fmt.Sprintf("%q", *v)
}

// list returns a list as text. A reader into a slice cannot distinguish NULL from an empty list.
func list(v []*string) string {
	out := "["
	for _, e := range v {
		out += str(e) + ","
	}
	return out + "]"
}

// inDatabase returns the sum of the rows of a table.
func inDatabase(t testing.TB, conn *pgx.Conn, table string) sum {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT * FROM "+table)
	if err != nil {
		t.Fatal(err)
	}
	var s sum
	var r auditRow
	var address *netip.Prefix
	var id *int64
	_, err = pgx.ForEachRow(rows, []any{
		&r.Time, &r.Cost, &r.Count, &r.Quota, &r.Remaining, &r.KeyID, &r.RetryAfterMS, &r.DurationUS,
		&r.Weight, &r.Status, &r.Decision, &r.Reason, &r.Prefix,
		&r.LimitName, &r.Key, &r.UserID, &r.Tier, &address, &r.Host, &r.Method, &r.Path, &r.Node,
		&r.Region, &r.Also, &id,
	}, func() error {
		r.Address = nil
		if address != nil {
			text := address.String()
			if address.IsSingleIP() {
				text = address.Addr().String()
			}
			r.Address = &text
		}
		s.add(r.text())
		return nil
	})
	if err != nil {
		t.Fatal(err)
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

// inFiles returns the sum of the rows of all files in a folder.
func inFiles(t testing.TB, dir string) sum {
	t.Helper()
	var s sum
	for _, name := range files(t, dir) {
		rows, err := parquet.ReadFile[auditRow](filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range rows {
			s.add(rows[i].text())
		}
	}
	return s
}
