package archive_test

import (
	"slices"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/archive"
)

func TestDaysBecomeFiles(t *testing.T) {
	_, conn := open(t)
	makeDays(t, conn, 4, 3000)
	want := inDatabase(t, conn, "rate_limit_audit")
	dir := t.TempDir()
	var told []string
	o := options(t, dir, 3)
	o.Done = func(d archive.Day) { told = append(told, d.Day) }
	days := run(t, conn, o)
	if len(days) != 3 || !slices.Equal(told, []string{"2026-08-01", "2026-08-02", "2026-08-03"}) {
		t.Fatalf("archived %+v, told of %q, want the 3 days before the 4th of August", days, told)
	}
	for _, d := range days {
		if d.Outcome != archive.Archived || d.Rows != 3000 || d.Bytes == 0 || d.Dropped || d.Problem != "" {
			t.Errorf("%+v, want 3000 rows archived and nothing dropped", d)
		}
	}
	run(t, conn, options(t, dir, 4))
	names := []string{"audit/2026/08/2026-08-01.parquet", "audit/2026/08/2026-08-02.parquet", "audit/2026/08/2026-08-03.parquet", "audit/2026/08/2026-08-04.parquet"}
	if got := files(t, dir); !slices.Equal(got, names) {
		t.Errorf("the files are %q, want %q", got, names)
	}
	if got := inFiles(t, dir); got != want {
		t.Errorf("the files have %+v, want %+v as the database", got, want)
	}
	if got := inDatabase(t, conn, "rate_limit_audit"); got != want {
		t.Errorf("the database has %+v, want %+v as before", got, want)
	}
}
