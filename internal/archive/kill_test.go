package archive_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/archive"
)

// asProgram is the variable that makes this test binary archive and drop the days of a database.
const asProgram = "PG_RATELIMIT_ARCHIVE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(asProgram); dsn != "" {
		if err := program(dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// program archives the days of a database before the one that its arguments name, and drops them.
// It prints a line when it begins.
func program(dsn string) error {
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return err
	}
	before, err := time.Parse(time.DateOnly, os.Args[2])
	if err != nil {
		return err
	}
	to, err := archive.NewDestination(os.Args[1])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = archive.Run(context.Background(), conn, archive.Options{Before: before, To: to, Drop: true, Now: today, Patience: 10 * time.Second})
	return err
}

// start runs this test binary as the program, until it has begun.
func start(t *testing.T, dsn, to string, before time.Time) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, to, before.Format(time.DateOnly))
	cmd.Env = append(os.Environ(), asProgram+"="+dsn)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("the program says %q, %v", line, err)
	}
	return cmd
}

// killed runs the program as often as it is killed before it ends, up to kills times, each time
// after a random part of the time that all of the work takes. between is called after each.
func killed(t *testing.T, kills int, all time.Duration, between func(n int), begin func() *exec.Cmd) (ended bool) {
	t.Helper()
	for n := range kills {
		cmd := begin()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("kill %d: the program ended with %v", n, err)
			}
			return true
		case <-time.After(time.Duration(rand.Int64N(int64(all)))):
			if err := cmd.Process.Kill(); err != nil {
				t.Logf("kill %d: %v", n, err)
			}
			<-done
		}
		between(n)
	}
	return false
}

// late adds a row to a day as a writer does: to its partition, or to a new one with a free name
// if the partition was detached or dropped.
func late(t *testing.T, conn *pgx.Conn, d time.Time, n int) *auditRow {
	t.Helper()
	if number(t, conn, "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relname LIKE $1 || '%' AND i.inhparent = 'rate_limit_audit'::regclass", partitionName(d)) == 0 {
		suffix := ""
		for i := 2; number(t, conn, "SELECT count(*) FROM pg_class WHERE relname = $1", partitionName(d)+suffix) > 0; i++ {
			suffix = fmt.Sprintf("_%d", i)
		}
		makePartition(t, conn, d, suffix)
	}
	row := &auditRow{Time: d.Add(time.Hour), Cost: int64(n), Count: 1, DurationUS: 1, Weight: 1, Decision: "limited", Prefix: "late", Node: "late"}
	const insert = "INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node) VALUES ($1, $2, 1, 'limited', 'late', 'late')"
	if _, err := conn.Exec(t.Context(), insert, row.Time, row.Cost); err != nil {
		t.Fatal(err)
	}
	return row
}

func TestKilledAtAnyTimeItGoesOn(t *testing.T) {
	dsn, conn := open(t)
	makeDays(t, conn, 5, 6000)
	want := inDatabase(t, conn, "rate_limit_audit")
	dir := t.TempDir()
	kills := 0
	between := func(n int) {
		kills++
		if n%3 != 0 {
			return
		}
		// The detachment of a day may be pending, and no partition can be made then.
		execute(t, conn, "SET lock_timeout = '10s'")
		finalizeAll(t, conn)
		want.add(late(t, conn, day(n%5), n).text())
	}
	for kills < 10 && !killed(t, 10-kills, 250*time.Millisecond, between, func() *exec.Cmd { return start(t, dsn, dir, day(5)) }) {
	}
	t.Logf("%d kills", kills)
	o := options(t, dir, 5)
	o.Drop = true
	run(t, conn, o)
	if got := inFiles(t, dir); got != want {
		t.Errorf("the files have %+v, want %+v", got, want)
	}
	if n := number(t, conn, "SELECT count(*) FROM pg_class WHERE relname ~ '^rate_limit_audit_[0-9]'"); n != 0 {
		t.Errorf("%d tables are left, want none", n)
	}
}

// finalizeAll completes pending detachments, as upkeep does.
func finalizeAll(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhdetachpending")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		execute(t, conn, "ALTER TABLE rate_limit_audit DETACH PARTITION "+name+" FINALIZE")
	}
}
