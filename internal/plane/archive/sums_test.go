package archive_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
)

// keepLong keeps the history for longer than these tests look back.
func keepLong(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	execute(t, conn, "UPDATE rate_limit_retention SET keep = '100 years'")
}

// makeSums makes the metrics and the usage of two days from day 0.
func makeSums(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	keepLong(t, conn)
	execute(t, conn, `INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, latency, updated_at)
SELECT g, $1::timestamptz + h * interval '1 hour', 'login', 'example.com', '', 'eu', 1 + h, CASE WHEN h % 2 = 0 THEN '{1,2}' ELSE '{}' END::bigint[], $1
FROM generate_series(0, 47) h, unnest('{minute,hour}'::text[]) g`, day(0))
	execute(t, conn, `INSERT INTO rate_limit_usage (day, user_id, key_id, requests, last_request)
SELECT ($1::timestamptz AT TIME ZONE 'UTC')::date + d, 'user-' || u, u, 10 * u, $1 FROM generate_series(0, 1) d, generate_series(1, 3) u`, day(0))
}

type metricsRow struct {
	Granularity string    `parquet:"granularity"`
	Time        time.Time `parquet:"time,timestamp(microsecond:utc)"`
	Prefix      string    `parquet:"prefix"`
	Requests    int64     `parquet:"requests"`
	Latency     []int64   `parquet:"latency,list"`
}

type usageRow struct {
	Day      int32  `parquet:"day,date"`
	UserID   string `parquet:"user_id"`
	Requests int64  `parquet:"requests"`
}

func read[T any](t *testing.T, dir, name string) []T {
	t.Helper()
	rows, err := parquet.ReadFile[T](filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestMetricsAndUsageBecomeFiles(t *testing.T) {
	_, conn := open(t)
	makeSums(t, conn)
	dir := t.TempDir()
	o := options(t, dir, 2)
	o.Drop = true // is about the audit log
	for _, d := range run(t, conn, o) {
		if d.Result != archive.Archived || d.Dropped {
			t.Errorf("%+v, want it archived and in the database still", d)
		}
	}
	names := []string{"metrics/2026/08/2026-08-01.parquet", "metrics/2026/08/2026-08-02.parquet", "usage/2026/08/2026-08-01.parquet", "usage/2026/08/2026-08-02.parquet"}
	if got := files(t, dir); !slices.Equal(got, names) {
		t.Fatalf("the files are %q, want %q", got, names)
	}
	hours := read[metricsRow](t, dir, names[1])
	if len(hours) != 24 || hours[3].Granularity != "hour" || !hours[3].Time.Equal(day(1).Add(3*time.Hour)) || hours[3].Requests != 28 || hours[3].Prefix != "login" || !slices.Equal(hours[2].Latency, []int64{1, 2}) {
		t.Errorf("the metrics are %+v, want the 24 hours of the day", hours)
	}
	users := read[usageRow](t, dir, names[2])
	if len(users) != 3 || users[0].Day != int32(day(0).Unix()/86400) || users[0].Requests+users[1].Requests+users[2].Requests != 60 {
		t.Errorf("the usage is %+v, want 3 users of the day", users)
	}
	if got := resultsOf(run(t, conn, o)); !slices.Equal(got, []archive.Result{archive.Unchanged, archive.Unchanged, archive.Unchanged, archive.Unchanged}) {
		t.Errorf("the second run: %q, want nothing changed", got)
	}
	if n := number(t, conn, "SELECT count(*) FROM rate_limit_usage"); n != 6 {
		t.Errorf("%d rows of usage are left, want 6", n)
	}
	// The days are settled, and not looked at any more.
	o = options(t, dir, 33)
	if days := run(t, conn, o); len(days) != 0 {
		t.Errorf("after a month: %+v, want nothing to do", days)
	}
}

// A proxy that could not reach the database adds to a day that is archived already.
func TestADayThatGrowsIsArchivedAgain(t *testing.T) {
	_, conn := open(t)
	makeSums(t, conn)
	dir := t.TempDir()
	o := options(t, dir, 2)
	run(t, conn, o)
	execute(t, conn, "UPDATE rate_limit_usage SET requests = requests + 1 WHERE user_id = 'user-2' AND day = '2026-08-01'")
	execute(t, conn, "UPDATE rate_limit_metrics SET requests = 99, updated_at = now() WHERE granularity = 'hour' AND time = $1", day(1))
	want := []archive.Result{archive.Unchanged, archive.Replaced, archive.Replaced, archive.Unchanged}
	if got := resultsOf(run(t, conn, o)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := read[metricsRow](t, dir, "metrics/2026/08/2026-08-02.parquet")[0].Requests; got != 99 {
		t.Errorf("the file has %d requests, want 99", got)
	}
	// Rows that are gone stay in the file.
	execute(t, conn, "DELETE FROM rate_limit_usage WHERE user_id = 'user-2'")
	days, err := archive.Run(t.Context(), conn, o)
	if err == nil || !strings.Contains(days[2].Problem, "rows were deleted") {
		t.Errorf("%v: %+v, want that rows were deleted", err, days)
	}
	if got := len(read[usageRow](t, dir, "usage/2026/08/2026-08-01.parquet")); got != 3 {
		t.Errorf("the file has %d rows, want 3 as before", got)
	}
}

// Upkeep deletes what is past its retention in portions, so a day may be there in part.
func TestDaysThatUpkeepDeletesAreNotArchived(t *testing.T) {
	_, conn := open(t)
	makeSums(t, conn)
	execute(t, conn, "UPDATE rate_limit_retention SET keep = '10 days'")
	dir := t.TempDir()
	o := options(t, dir, 2)
	for _, c := range []struct {
		now  time.Time
		want int
	}{{day(11), 0}, {day(10), 2}, {day(9), 4}} {
		o.Now = c.now
		if days := run(t, conn, o); len(days) != c.want {
			t.Errorf("on %v it looked at %+v, want %d", c.now, days, c.want)
		}
	}
}

func TestOnlyFilesOfTheArchiveExpire(t *testing.T) {
	_, conn := open(t)
	makeSums(t, conn)
	makeDays(t, conn, 3, 10)
	dir := t.TempDir()
	o := options(t, dir, 3)
	run(t, conn, o)
	// What others put there: other names, another folder, and other files with a name of the archive.
	ours, err := os.ReadFile(filepath.Join(dir, "audit/2026/08/2026-08-01.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	others := []string{"audit/2026/08/copy-of-2026-08-01.parquet", "audit/2026-08-01.parquet", "audit/2026/07/2026-07-01.parquet", "mine/2026/08/2026-08-01.parquet", "audit/2026/08/2026-08-01-02.parquet"}
	for _, name := range others {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, ours, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := "usage/2026/08/2026-08-01-2.parquet"
	if err := os.WriteFile(filepath.Join(dir, foreign), []byte("notes of somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Expire = day(2)
	var gone []string
	for _, d := range run(t, conn, o) {
		if d.Result == archive.Expired {
			gone = append(gone, d.File)
		}
	}
	want := []string{"audit/2026/08/2026-08-01.parquet", "audit/2026/08/2026-08-02.parquet", "metrics/2026/08/2026-08-01.parquet",
		"metrics/2026/08/2026-08-02.parquet", "usage/2026/08/2026-08-01.parquet", "usage/2026/08/2026-08-02.parquet"}
	if !slices.Equal(gone, want) {
		said, _ := json.Marshal(gone)
		t.Errorf("expired are %s, want %q", said, want)
	}
	left := append([]string{"audit/2026/08/2026-08-03.parquet", foreign}, others...)
	slices.Sort(left)
	got := files(t, dir)
	slices.Sort(got)
	if !slices.Equal(got, left) {
		t.Errorf("left are %q, want %q", got, left)
	}
	// The days are in the database still, and do not come back.
	if days := run(t, conn, o); len(days) != 1 {
		t.Errorf("the next run: %+v, want the third day only", days)
	}
	o.Expire = day(4)
	if _, err := archive.Run(t.Context(), conn, o); err == nil || !strings.Contains(err.Error(), "--expire") {
		t.Errorf("%v, want that files expire later than they are made", err)
	}
}
