package archive_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/archive"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/auditlog"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// A run with Drop drops days that an earlier run has archived, archives and drops the days that it has not,
// and rewrites no file. A day without rows has no file.
func TestDroppedDaysAreInFiles(t *testing.T) {
	_, conn := openAuditLog(t, 4, 3000)
	makePartition(t, conn, day(4)) // without rows
	want := sumOfTable(t, conn, "rate_limit_audit WHERE time < '2026-08-04'")
	dir := t.TempDir()
	o := options(t, dir, 3)
	check.Equal(t, "the first run", summaryOf(mustRun(t, conn, o)), "archived, archived, archived")
	// A file that is written again would get another modification time.
	oldTime := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range files(t, dir) {
		if err := os.Chtimes(filepath.Join(dir, name), oldTime, oldTime); err != nil {
			t.Fatal(err)
		}
	}
	o.Drop = true
	check.Equal(t, "the second run", summaryOf(mustRun(t, conn, o)),
		"unchanged dropped, unchanged dropped, unchanged dropped")
	for _, name := range files(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.ModTime().Equal(oldTime) {
			t.Errorf("%s has the modification time %v, error %v, want %v", name, info.ModTime(), err, oldTime)
		}
	}
	checkFiles(t, dir, want)
	n := queryInt(t, conn,
		"SELECT count(*) FROM pg_class WHERE relname ~ '^rate_limit_audit_[0-9]' AND relkind = 'r'")
	check.Equal(t, "the partitions of the audit log", n, 2)
	o = options(t, dir, 5)
	o.Drop = true
	check.Equal(t, "the later days", summaryOf(mustRun(t, conn, o)), "archived dropped, empty dropped")
	check.Equal(t, "the files, without one for the empty day", len(files(t, dir)), 4)
	check.Equal(t, "the last run", summaryOf(mustRun(t, conn, o)), "")
}

// Rows that are written after the archive of their day get a further file, whether the partition of the day
// still exists, was dropped and created again, or was detached.
func TestLateRowsGetFurtherFiles(t *testing.T) {
	_, conn := openAuditLog(t, 1, 1000)
	dir := t.TempDir()
	mustRun(t, conn, options(t, dir, 1))
	auditlog.Fill(t, conn, day(0), 7)
	want := sumOfTable(t, conn, "rate_limit_audit")
	o := options(t, dir, 1)
	o.Drop = true
	days := mustRun(t, conn, o)
	check.Equal(t, "the run", summaryOf(days), "archived dropped")
	check.Equal(t, "the rows of the day", days[0].Rows, 1007)
	checkFiles(t, dir, want)
	// The partition was dropped. A writer creates a new partition, which is detached, and then another.
	for _, name := range []string{"late", "later"} {
		makePartition(t, conn, day(0))
		execute(t, conn, "INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node) "+
			"VALUES ($1, 1, 1, 'limited', $2, 'late')", day(0).Add(time.Hour), name)
		late := sumOfTable(t, conn, "rate_limit_audit")
		want.rows, want.hash = want.rows+late.rows, want.hash+late.hash
		if name == "late" {
			detachFirstDay(t, conn)
		}
	}
	check.Equal(t, "late rows", summaryOf(mustRun(t, conn, o)), "archived dropped, archived dropped")
	check.Equal(t, "the next run", summaryOf(mustRun(t, conn, o)), "")
	checkFiles(t, dir, want)
	names := []string{"audit/2026/08/2026-08-01-2.parquet", "audit/2026/08/2026-08-01-3.parquet",
		"audit/2026/08/2026-08-01-4.parquet", "audit/2026/08/2026-08-01.parquet"}
	if got := files(t, dir); !slices.Equal(got, names) {
		t.Errorf("the files are %q, want %q", got, names)
	}
}

// A day that an open transaction uses is archived, and stays until a run after the end of the transaction
// drops it. Other days are dropped, even a detached one.
func TestOpenTransactionKeepsItsDay(t *testing.T) {
	dsn, conn := openAuditLog(t, 3, 100)
	// A detached day is dropped like the others.
	detachFirstDay(t, conn)
	reader := cluster.Connect(t, dsn)
	execute(t, reader, "BEGIN")
	execute(t, reader, "SELECT 1 FROM "+partitionName(day(1))+" LIMIT 1")
	o := options(t, t.TempDir(), 3)
	o.Drop, o.Patience = true, 100*time.Millisecond
	days, err := archive.Run(t.Context(), conn, o)
	expectError(t, err, "1 of 3")
	check.Equal(t, "the days", summaryOf(days), "archived dropped, archived, archived dropped")
	expectError(t, errors.New(days[1].Problem), partitionName(day(1)))
	execute(t, reader, "COMMIT")
	check.Equal(t, "after the reader ended", summaryOf(mustRun(t, conn, o)), "unchanged dropped")
}

// While a run archives a database, another run fails with ErrRunning.
func TestSecondRunFailsWhileFirstRuns(t *testing.T) {
	dsn, conn := openAuditLog(t, 1, 100)
	// A lock on the day keeps the first run from ending.
	locker, second := cluster.Connect(t, dsn), cluster.Connect(t, dsn)
	execute(t, locker, "BEGIN")
	execute(t, locker, "LOCK TABLE "+partitionName(day(0))+" IN ACCESS EXCLUSIVE MODE")
	dir := t.TempDir()
	first := make(chan error, 1)
	slow := options(t, dir, 1)
	slow.Patience = time.Minute
	go func() {
		_, err := archive.Run(context.WithoutCancel(t.Context()), conn, slow)
		first <- err
	}()
	const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = " +
		"(SELECT oid FROM pg_database WHERE datname = current_database())"
	await.Within(t, time.Minute, "the first run has its lock",
		func() bool { return queryInt(t, second, locks) > 0 })
	o := options(t, dir, 1)
	o.Patience = 50 * time.Millisecond
	if _, err := archive.Run(t.Context(), second, o); !errors.Is(err, archive.ErrRunning) {
		t.Errorf("the second run returned the error %v, want %v", err, archive.ErrRunning)
	}
	execute(t, locker, "COMMIT")
	if err := <-first; err != nil {
		t.Error(err)
	}
	mustRun(t, second, o)
}

// If the file of a day is damaged, the day is not dropped, and the problem names the file. After the file is
// removed, a run archives and drops the day.
func TestDamagedFileKeepsItsDay(t *testing.T) {
	_, conn := openAuditLog(t, 1, 1000)
	want := sumOfTable(t, conn, "rate_limit_audit")
	dir := t.TempDir()
	mustRun(t, conn, options(t, dir, 1))
	name := filepath.Join(dir, files(t, dir)[0])
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, dir, 1)
	o.Drop = true
	for _, at := range []int{100, len(whole) / 2, len(whole) - 3} {
		damaged := slices.Clone(whole)
		for i := range 64 {
			if at+i < len(damaged) {
				damaged[at+i] ^= 0x55
			}
		}
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		expectProblem(t, conn, o, filepath.Base(name))
		if got := sumOfTable(t, conn, partitionName(day(0))); got != want {
			t.Fatalf("damaged at %d: the table has %+v, want %+v as before", at, got, want)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	mustRun(t, conn, o)
	checkFiles(t, dir, want)
}

// If rows are deleted from the table after the archive, as when a person is forgotten, the file keeps them,
// and a run writes no new file.
func TestDeletedRowsStayInFiles(t *testing.T) {
	_, conn := openAuditLog(t, 1, 1000)
	dir := t.TempDir()
	mustRun(t, conn, options(t, dir, 1))
	want := sumOfFiles(t, dir)
	execute(t, conn, "DELETE FROM rate_limit_audit WHERE user_id = 'user-1'")
	for _, drop := range []bool{false, true} {
		o := options(t, dir, 1)
		o.Drop = drop
		want := map[bool]string{false: "unchanged", true: "unchanged dropped"}[drop]
		check.Equal(t, fmt.Sprint("with Drop ", drop), summaryOf(mustRun(t, conn, o)), want)
	}
	checkFiles(t, dir, want)
}

// A run with Drop copies days within the retention, and does not drop them.
func TestRetainedDaysAreNotDropped(t *testing.T) {
	_, conn := openAuditLog(t, 2, 10)
	want := sumOfTable(t, conn, "rate_limit_audit")
	dir := t.TempDir()
	o := options(t, dir, 2)
	o.Drop = true
	execute(t, conn, "UPDATE rate_limit_retention SET keep = $1::timestamptz - $2 WHERE what = 'audit'",
		today, day(1))
	check.Equal(t, "the days", summaryOf(mustRun(t, conn, o)), "archived dropped, archived")
	check.Equal(t, "the rows that are left", queryInt(t, conn, "SELECT count(*) FROM rate_limit_audit"), 10)
	checkFiles(t, dir, want)
}

// A day of the ledger is closed before it is copied. A row that comes later gets a further file, and one that
// lost its person none. Only days past the retention are dropped, or if they are kept for ever, those that
// get no more rows.
func TestLedgerIsArchivedOnce(t *testing.T) {
	_, conn := openAuditLog(t, 0, 0)
	for _, n := range []int{0, 30} {
		auditlog.FillLedger(t, conn, day(n), 60)
	}
	dir := t.TempDir()
	run := func(keep string, drop bool, n int) string {
		t.Helper()
		execute(t, conn, "UPDATE rate_limit_ledger_retention SET keep = $1::text::interval", keep)
		o := options(t, dir, n)
		o.Drop, o.Now = drop, day(35)
		var got []string
		for _, d := range mustRun(t, conn, o) {
			got = append(got, fmt.Sprint(d.Result, " ", d.Rows, " ", d.Dropped, " ", d.File))
		}
		return strings.Join(got, "\n")
	}
	// 60 requests have 70 lines.
	check.Equal(t, "a new day", run("400 days", false, 1),
		"archived 70 false ledger/2026/08/2026-08-01.parquet")
	err := cluster.Exec(t.Context(), conn, "INSERT INTO rate_limit_ledger (day, id, time, charges) VALUES "+
		"($1, gen_random_uuid(), now(), '[]')", day(0))
	expectError(t, err, "day_is_summed")
	execute(t, conn, "SELECT rate_limit_forget_person('user-1')")
	check.Equal(t, "without a person", run("400 days", false, 1),
		"unchanged 70 false ledger/2026/08/2026-08-01.parquet")
	// as rate_limit_ledger_upkeep opens a day
	execute(t, conn, "ALTER TABLE rate_limit_ledger_20260801 DROP CONSTRAINT day_is_summed")
	execute(t, conn, "UPDATE rate_limit_ledger_days SET summed = false, open_until = '2026-08-03Z'")
	auditlog.FillLedger(t, conn, day(0), 1)
	check.Equal(t, "both days", run("400 days", true, 31),
		"archived 71 false ledger/2026/08/2026-08-01-2.parquet\n"+
			"archived 70 false ledger/2026/08/2026-08-31.parquet")
	check.Equal(t, "days kept for ever", run("1000 years", true, 31),
		"unchanged 71 true ledger/2026/08/2026-08-01.parquet\n"+
			"unchanged 70 false ledger/2026/08/2026-08-31.parquet")
	check.Equal(t, "the day past its retention", run("3 days", true, 31),
		"unchanged 70 true ledger/2026/08/2026-08-31.parquet")
	check.Equal(t, "all rows of the files", sumOfFiles(t, dir).rows, 141)
}

// If a newer version or an administrator adds a column, new files have the column, and older files stay.
func TestNewColumnIsArchived(t *testing.T) {
	_, conn := openAuditLog(t, 2, 1000)
	dir := t.TempDir()
	mustRun(t, conn, options(t, dir, 1))
	execute(t, conn, "ALTER TABLE rate_limit_audit ADD COLUMN number bigint, ADD COLUMN colour varchar(9), "+
		"ADD COLUMN price numeric")
	execute(t, conn, "UPDATE rate_limit_audit SET number = cost * 7, colour = 'red', price = 1.50 WHERE "+
		"time >= $1", day(1))
	want := sumOfTable(t, conn, "rate_limit_audit")
	o := options(t, dir, 2)
	o.Drop = true
	check.Equal(t, "the days", summaryOf(mustRun(t, conn, o)), "unchanged dropped, archived dropped")
	checkFiles(t, dir, want)
}

// A table with a row of another day is neither archived nor dropped. The problem names the day of the row.
func TestRowOfAnotherDayKeepsItsTable(t *testing.T) {
	_, conn := openAuditLog(t, 2, 10)
	detachFirstDay(t, conn)
	execute(t, conn, "INSERT INTO "+partitionName(day(0))+" SELECT * FROM "+partitionName(day(1)))
	dir := t.TempDir()
	expectProblem(t, conn, options(t, dir, 2), "2026-08-02")
	if got := files(t, dir); !slices.Equal(got, []string{"audit/2026/08/2026-08-02.parquet"}) {
		t.Errorf("the files are %q, want only that of the other day", got)
	}
}

// A day on which a view depends is not dropped. The next day is dropped.
func TestTableOfViewIsNotDropped(t *testing.T) {
	_, conn := openAuditLog(t, 2, 10)
	execute(t, conn, "CREATE VIEW mine AS SELECT * FROM "+partitionName(day(0)))
	o := options(t, t.TempDir(), 2)
	o.Drop = true
	days, err := archive.Run(t.Context(), conn, o)
	expectError(t, err, "1 of 2")
	check.Equal(t, "the days", summaryOf(days), "archived, archived dropped")
	expectError(t, errors.New(days[0].Problem), "depend")
}

// A run warns unless the retention keeps the selected days for at least another week, because a week is
// needed to repair a failed run before upkeep deletes the days.
func TestRetentionShouldLeaveAWeek(t *testing.T) {
	_, conn := openAuditLog(t, 1, 10)
	for _, c := range []struct {
		keep  string
		warns bool
	}{{"51 days", true}, {"52 days", true}, {"81 days", true}, {"82 days", false}, {"7 years", false}} {
		execute(t, conn, "UPDATE rate_limit_retention SET keep = $1::text::interval WHERE what = 'audit'",
			c.keep)
		o := options(t, t.TempDir(), 1)
		o.Now = day(1).AddDate(0, 0, 75)
		var warning error
		o.Warn = func(err error) { warning = err }
		check.Equal(t, "kept for "+c.keep, summaryOf(mustRun(t, conn, o)), "archived")
		if c.warns {
			expectError(t, warning, "rate_limit_retention")
		} else if warning != nil {
			t.Errorf("kept for %s: warning %v, want none", c.keep, warning)
		}
	}
}

// Run fails if Options.Before is not in the past, and if the audit log does not exist.
func TestArchiveNeedsLogAndPastTime(t *testing.T) {
	dsn, conn := openAuditLog(t, 0, 0)
	o := options(t, t.TempDir(), 1)
	o.Before = today.Add(time.Second)
	_, err := archive.Run(t.Context(), conn, o)
	expectError(t, err, "--before")
	execute(t, conn, "DROP TABLE rate_limit_audit, rate_limit_ledger CASCADE")
	_, err = archive.Run(t.Context(), cluster.Connect(t, dsn), options(t, t.TempDir(), 1))
	expectError(t, err, "migrate")
}
