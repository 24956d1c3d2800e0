package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// grace bounds the time from the end of a call's context to the return of the call. It is long because the
// machine may be busy.
const grace = time.Minute

// arrival bounds the time until a DB or a server detects that the other side has ended a connection.
const arrival = 400 * time.Millisecond

// testForgotten checks that if the server has lost the prepared statements of a session, as behind a pooler,
// a DB retries the transaction, which then takes effect once.
func testForgotten(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	insert := statement("INSERT INTO t VALUES ($1::bigint)", int64(1))
	count := statement("SELECT count(*) FROM t")
	for i := range 7 {
		single, repeated := statement("INSERT INTO t VALUES ($1::bigint)", int64(2)),
			statement("INSERT INTO t SELECT $1::bigint", int64(3))
		d.run(append(transaction(insert, count, repeated), single)...)
		if got := cells(t, count); !equal(got, bigintBytes(int64(3*i+1))) {
			t.Fatalf("round %d: %x rows, want %d", i, got, 3*i+1)
		}
		d.exec([]string{"DEALLOCATE ALL", "DISCARD ALL", "SELECT 1"}[i%3])
	}
}

// testExistingName checks that no call fails if the session already has a prepared statement of the same
// name, as behind a pooler.
func testExistingName(t *testing.T, d *db) {
	dsn := WithSettings(t, d.dsn, "pool_max_conns", "1")
	first, second := d.open.connect(t, dsn), d.open.connect(t, dsn)
	first.ping()
	// The name of a statement depends only on its text.
	name := first.queryCell("SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT 1'")
	second.exec("PREPARE " + name + " AS SELECT 1")
	second.ping()
	second.run(statement("SELECT 1"), statement("SELECT 2"))
}

// testAltered checks that statements succeed after a change of their table, although the server refuses
// prepared statements with changed columns.
func testAltered(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint, m bigint); INSERT INTO t VALUES (1, 2); CREATE TABLE u (n bigint)")
	var selects []*pgdb.Statement
	for i := range 6 {
		selects = append(selects, statement(fmt.Sprintf("SELECT t.*, %d::bigint FROM t", i)))
	}
	insert := statement("INSERT INTO u VALUES (1)")
	all := append(transaction(append([]*pgdb.Statement{insert}, selects...)...), statement("SELECT m FROM t"))
	for i, alter := range []string{"SELECT 1", "ALTER TABLE t ALTER m TYPE text",
		"ALTER TABLE t ALTER m TYPE bigint USING m::bigint", "ALTER TABLE t ADD k text",
		"ALTER TABLE t DROP k"} {
		d.exec(alter)
		for j := range 2 { // first not prepared, then prepared
			d.run(all...)
			if got := d.queryCell("SELECT count(*) FROM u"); got != bigintBytes(int64(2*i+j+1)) {
				t.Fatalf("%s: inserted %x times, want %d", alter, got, 2*i+j+1)
			}
			want := 3
			if i == 3 {
				want = 4
			}
			for n, s := range selects {
				if got := cells(t, s); len(got) != want || got[want-1] != bigintBytes(int64(n)) ||
					(len(got[1]) == 1) != (i == 1) {
					t.Fatalf("%s: got the row %q, want %d columns and %d last", alter, got, want, n)
				}
			}
		}
	}
}

// testReadOnly checks that a DB does not reuse a session after an error that shows that the session is
// read-only.
func testReadOnly(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	d.exec("SET default_transaction_read_only = on")
	s := statement("INSERT INTO t VALUES (1)")
	if err := d.try(s); err != nil || s.Code != "25006" {
		t.Fatalf("%v, %v, code %q; want code 25006", err, s.Err, s.Code)
	}
	d.run(s)
	d.exec("SET default_transaction_read_only = on")
	if err := d.tryExec("INSERT INTO t VALUES (2)"); err == nil {
		t.Fatal("Exec in a read-only session: no error, want one")
	}
	d.exec("INSERT INTO t VALUES (2)")
}

// asleep is the condition that a session runs pg_sleep, for awaitSessions.
const asleep = "query LIKE 'SELECT pg_sleep%' AND wait_event = 'PgSleep'"

// testDeadline checks that the timeout of a call, and the end of its context, end the call and its statement
// on the server.
func testDeadline(t *testing.T, d *db) {
	const limit = 3 * time.Second // until then, the statement has started, even on a busy machine
	other := d.open.connect(t, d.dsn)
	statements := []*pgdb.Statement{statement("SELECT 1"), statement("SELECT pg_sleep(600)"),
		statement("SELECT 2")}
	if err := d.tryFor(limit, statements...); !errors.Is(err, pgdb.ErrNoAnswer) ||
		errors.Is(err, pgdb.ErrNotSent) || statements[1].Err == nil || statements[2].Err == nil {
		t.Errorf("a timeout ends Run with %v, and its statements with %v and %v, want ErrNoAnswer",
			err, statements[1].Err, statements[2].Err)
	}
	other.awaitSessions(asleep, 0)
	if got := d.queryCell("SELECT 'x'::text"); got != "x" {
		t.Errorf("after a timeout: got %q, want x", got)
	}
	if err := d.Exec(t.Context(), limit, "SELECT pg_sleep(600)"); !errors.Is(err, pgdb.ErrNoAnswer) {
		t.Errorf("a timeout ends Exec with %v, want ErrNoAnswer", err)
	}
	other.awaitSessions(asleep, 0)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, timeout, []*pgdb.Statement{statement("SELECT pg_sleep(600)")}) }()
	other.awaitSessions(asleep, 1)
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled context ends Run with %v, want Canceled", err)
	}
	other.awaitSessions(asleep, 0)
}

// testEnded checks that calls with an ended context return its error, and run nothing on the server.
func testEnded(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := statement("INSERT INTO t VALUES (1)")
	if err := d.Run(ctx, timeout, []*pgdb.Statement{s}); !errors.Is(err, context.Canceled) || s.Err == nil {
		t.Errorf("Run returns %v, the statement has %v, want Canceled", err, s.Err)
	}
	if err := d.Exec(ctx, timeout, "INSERT INTO t VALUES (2)"); !errors.Is(err, context.Canceled) {
		t.Errorf("Exec returns %v, want Canceled", err)
	}
	d.requireRows(0, "after calls with an ended context")
}

// testEndedSessions checks that no call fails after the server has ended idle sessions, or the network has
// closed connections that were idle for more than a second, even if the DB detects that only when it uses a
// connection. If the connections were idle for less, one call may fail.
func testEndedSessions(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	proxy, dsn := slownet.ListenFor(t, d.dsn, 0)
	idle := d.open.connect(t, dsn)
	insert := func() {
		idle.run(transaction(statement("INSERT INTO t VALUES (1)"), statement("SELECT 2"))...)
	}
	closeConnections := func() { proxy.CloseConnections(); await.Pause(1100 * time.Millisecond) }
	for i, end := range []func(){
		func() {
			d.endSessions("true")
			d.awaitSessions("true", 0)
		},
		closeConnections,
	} {
		insert()
		end()
		insert()
		d.requireRows(2*i+2, "after ended sessions")
	}
	closeConnections()
	idle.exec("SELECT 1")
	idle.openSeveral()
	proxy.CloseConnections()
	await.Pause(arrival)
	_ = idle.try(statement("SELECT 1"))
	idle.ping()
}

// testDBClosed checks that calls that begin after the call of Close fail. Close returns when the earlier
// calls have ended.
func testDBClosed(t *testing.T, d *db) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, closed := make(chan error, 1), make(chan bool)
	s := statement("SELECT pg_sleep(600)")
	go func() { done <- d.Run(ctx, timeout, []*pgdb.Statement{s}) }()
	d.awaitSessions(asleep, 1)
	go func() { d.Close(); close(closed) }()
	await.Within(t, timeout, "calls to fail", func() bool { return d.try(statement("SELECT 1")) != nil })
	cancel()
	<-closed
	if err := <-done; err == nil && s.Err == nil {
		t.Error("a statement of 600 s after Close: no error, want one")
	}
	d.Close()
	later := statement("SELECT 1")
	if err := d.try(later); err == nil || later.Err == nil {
		t.Errorf("Run after Close: %v, the statement %v; want errors", err, later.Err)
	}
	if err := d.tryExec("SELECT 1"); err == nil {
		t.Error("Exec after Close: no error, want one")
	}
}

// testNoServer checks that calls without a server fail before their timeouts. Their errors do not contain the
// password.
func testNoServer(t *testing.T, open openDB) {
	d := open.connect(t, "postgres://somebody:s3cr3t-w0rd@127.0.0.1:1/nothing?sslmode=disable")
	s := statement("SELECT 1")
	err := d.try(s)
	if !errors.Is(err, pgdb.ErrNotSent) || !errors.Is(err, pgdb.ErrConnectionLost) || s.Err == nil {
		t.Fatalf("no server: %v, %v; want ErrNotSent and ErrConnectionLost", err, s.Err)
	}
	exec := d.tryExec("SELECT 1")
	if exec == nil || strings.Contains(err.Error()+exec.Error(), "s3cr3t") {
		t.Errorf("no server: %v; %v; want errors without the password", err, exec)
	}
}

// requireRecovery fails the test unless one of ten calls succeeds.
func (d *db) requireRecovery() {
	d.t.Helper()
	s := statement("SELECT 1")
	for attempt := 1; d.try(s) != nil; attempt++ {
		if attempt == 10 {
			d.t.Fatalf("call %d after the server's return: error %v, want none", attempt, s.Err)
		}
	}
}

// testServerGone checks that calls fail while a server is killed, and succeed after its restart.
func testServerGone(t *testing.T, open openDB) {
	c := cluster.Private(t, cluster.Options{})
	d := open.connect(t, c.DSN("postgres"))
	d.ping()
	done := make(chan error, 1)
	s := statement("SELECT pg_sleep(600)")
	go func() { done <- d.try(s) }()
	time.Sleep(100 * time.Millisecond) // usually, the statement has started
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, pgdb.ErrConnectionLost) || s.Err == nil {
		t.Errorf("killed server: %v, the statement %v; want ErrConnectionLost", err, s.Err)
	}
	if err := d.try(s); err == nil {
		t.Error("a call to a killed server: no error, want one")
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.requireRecovery()
}

// testServerHangs checks that calls to a server with stopped processes end after their timeouts, and Close
// does not wait for a call that hangs. After the server continues, calls succeed.
func testServerHangs(t *testing.T, open openDB) {
	c := cluster.Private(t, cluster.Options{})
	d, closing := open.connect(t, c.DSN("postgres")), open.connect(t, c.DSN("postgres"))
	d.ping()
	closing.ping()
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s := statement("SELECT 1")
		if err := d.tryFor(100*time.Millisecond, s); !errors.Is(err, pgdb.ErrNoAnswer) || s.Err == nil {
			t.Errorf("call %d to a server that hangs: %v, %v; want ErrNoAnswer", i, err, s.Err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	waiting := make(chan error, 1)
	go func() { waiting <- closing.Run(ctx, grace, []*pgdb.Statement{statement("SELECT 1")}) }()
	time.Sleep(100 * time.Millisecond) // usually, the statement has started
	closing.Close()
	if ctx.Err() != nil {
		t.Errorf("Close took %v while a call hung, want less", grace)
	}
	cancel()
	if err := <-waiting; err == nil {
		t.Error("a call to a server that hangs: no error, want one")
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	d.requireRecovery()
}
