package archive_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
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

// killAfter kills the program after a time. It reports false if the program ended before.
func killAfter(t *testing.T, cmd *exec.Cmd, after time.Duration) bool {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the program ended with %v", err)
		}
		return false
	case <-time.After(after):
		_ = cmd.Process.Kill() // unless it has just ended
		return <-done != nil
	}
}

// late adds a row to a day as a writer does: to its partition, or to a new one if that was
// detached or dropped.
func late(t *testing.T, conn *pgx.Conn, d time.Time, n int) *auditRow {
	t.Helper()
	finalizeAll(t, conn) // no partition can be made as long as the detachment is pending
	makePartition(t, conn, d)
	row := &auditRow{Time: d.Add(time.Hour), Cost: int64(n), Count: 1, DurationUS: 1, Weight: 1, Decision: "limited", Prefix: "late", Node: "late"}
	execute(t, conn, "INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node) VALUES ($1, $2, 1, 'limited', 'late', 'late')", row.Time, row.Cost)
	return row
}

func TestKilledAtAnyTimeItGoesOn(t *testing.T) {
	dsn, conn := open(t)
	execute(t, conn, "SET lock_timeout = '30s'")
	dir := t.TempDir()
	var want sum
	kills, from := 0, 0
	for round := 0; kills < 10; round++ {
		if round == 20 {
			t.Fatalf("only %d kills in %d rounds", kills, round)
		}
		from = round * 3
		for n := from; n < from+3; n++ {
			makePartition(t, conn, day(n))
			fill(t, conn, day(n), 5000)
		}
		want.plus(inDatabase(t, conn, "rate_limit_audit"))
		for kills < 10 && killAfter(t, start(t, dsn, dir, day(from+3)), rand.N(200*time.Millisecond)) {
			kills++
			if kills%3 == 0 {
				want.add(late(t, conn, day(from+kills%3), kills).text())
			}
		}
		o := options(t, dir, from+3)
		o.Drop, o.Patience = true, time.Minute
		run(t, conn, o)
	}
	if got := inFiles(t, dir); got != want {
		t.Errorf("the files have %+v, want %+v", got, want)
	}
	if n := number(t, conn, "SELECT count(*) FROM pg_class WHERE relname ~ '^rate_limit_audit_[0-9]' AND relkind = 'r'"); n != 0 {
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
