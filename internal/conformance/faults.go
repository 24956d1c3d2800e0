package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// soon is how long a call may take beyond its context, on a busy machine.
const soon = 3 * time.Second

// testForgotten has the server forget its prepared statements, as a pooler in
// between does.
func testForgotten(t *testing.T, d *db) {
	for i := 0; i < 3; i++ {
		for j := 0; j < 10; j++ {
			if got := d.cell("SELECT $1::text", "x"); got != "x" {
				t.Fatalf("got %q", got)
			}
			d.exec("DEALLOCATE ALL")
		}
		d.exec("DISCARD ALL")
	}
}

func testDeadline(t *testing.T, d *db) {
	for i := 0; i < 3; i++ {
		statements := []*ratelimit.Statement{{SQL: "SELECT 1"}, {SQL: "SELECT pg_sleep(600)"}, {SQL: "SELECT 2"}}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		started := time.Now()
		err := d.Run(ctx, statements)
		took := time.Since(started)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || took > soon {
			t.Fatalf("a deadline of 200 ms ends with %v after %v", err, took)
		}
		if statements[1].Err == nil || statements[2].Err == nil {
			t.Errorf("the outcome is not known of %v, %v", statements[1].Err, statements[2].Err)
		}
		if got := d.cell("SELECT 'x'::text"); got != "x" {
			t.Errorf("after a deadline: %q", got)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := d.Exec(ctx, "SELECT pg_sleep(600)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline ends Exec with %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, stop)
	if err := d.Run(ctx, []*ratelimit.Statement{{SQL: "SELECT pg_sleep(600)"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is cancelled ends Run with %v", err)
	}
	// The server does not go on for nobody.
	for until := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		left := d.cell("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()")
		if left == bigintBytes(0) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%x statements go on without anybody waiting", left)
		}
	}
}

func testEnded(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := &ratelimit.Statement{SQL: "INSERT INTO t VALUES (1)"}
	if err := d.Run(ctx, []*ratelimit.Statement{s}); !errors.Is(err, context.Canceled) || s.Err == nil {
		t.Errorf("Run ends with %v, the statement with %v", err, s.Err)
	}
	if err := d.Exec(ctx, "INSERT INTO t VALUES (2)"); !errors.Is(err, context.Canceled) {
		t.Errorf("Exec ends with %v", err)
	}
	if got := d.cell("SELECT count(*) FROM t"); got != bigintBytes(0) {
		t.Errorf("%x rows for callers who are gone", got)
	}
}

// testEndedSessions ends the server's sessions: the next calls may fail, a few
// later ones may not.
func testEndedSessions(t *testing.T, d *db) {
	other := d.open(t, d.dsn)
	defer other.Close()
	for i := 0; i < 3; i++ {
		d.run(&ratelimit.Statement{SQL: "SELECT 1"}, &ratelimit.Statement{SQL: "SELECT 2"})
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		if err := other.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		failures := 0
		for {
			s := &ratelimit.Statement{SQL: "SELECT 1"}
			err := d.Run(ctx, []*ratelimit.Statement{s})
			if err == nil && s.Err == nil {
				break
			}
			if err != nil && s.Err == nil || err == nil {
				t.Fatalf("Run says %v, its statement %v", err, s.Err)
			}
			if failures++; failures > 9 {
				t.Fatalf("the %d. call after the sessions ended: %v", failures, err)
			}
		}
		cancel()
	}
}

func testDBClosed(t *testing.T, d *db) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	s := &ratelimit.Statement{SQL: "SELECT pg_sleep(600)"}
	go func() { done <- d.Run(ctx, []*ratelimit.Statement{s}) }()
	for until := time.Now().Add(timeout); d.cell("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()") == bigintBytes(0); {
		if time.Now().After(until) {
			t.Fatal("the statement under way is not seen")
		}
	}
	d.Close()
	if err := <-done; err == nil && s.Err == nil {
		t.Error("a statement of 600 s ended well when the connections were closed")
	}
	d.Close()
	later := &ratelimit.Statement{SQL: "SELECT 1"}
	if err := d.Run(context.Background(), []*ratelimit.Statement{later}); err == nil || later.Err == nil {
		t.Errorf("Run after Close: %v, the statement %v", err, later.Err)
	}
	if err := d.Exec(context.Background(), "SELECT 1"); err == nil {
		t.Error("Exec after Close says nothing")
	}
}

func testNoServer(t *testing.T, open func(t testing.TB, dsn string) ratelimit.DB) {
	d := open(t, "postgres://somebody:s3cr3t-w0rd@127.0.0.1:1/nothing?sslmode=disable")
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s := &ratelimit.Statement{SQL: "SELECT 1"}
	started := time.Now()
	err := d.Run(ctx, []*ratelimit.Statement{s})
	if err == nil || s.Err == nil || time.Since(started) > soon {
		t.Fatalf("nobody listens: %v, %v after %v", err, s.Err, time.Since(started))
	}
	exec := d.Exec(ctx, "SELECT 1")
	if exec == nil || strings.Contains(err.Error()+exec.Error(), "s3cr3t") {
		t.Errorf("nobody listens: %v; %v", err, exec)
	}
}

// testServerGone kills a server under a statement, and has it come back.
func testServerGone(t *testing.T, open func(t testing.TB, dsn string) ratelimit.DB) {
	c := cluster.Private(t, cluster.Options{})
	d := &db{t: t, DB: open(t, c.DSN("postgres"))}
	defer d.Close()
	d.run(&ratelimit.Statement{SQL: "SELECT 1"})
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s := &ratelimit.Statement{SQL: "SELECT pg_sleep(600)"}
	go func() { done <- d.Run(ctx, []*ratelimit.Statement{s}) }()
	time.Sleep(100 * time.Millisecond) // before or after it has begun: both must end
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || s.Err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the server was killed: %v, the statement %v", err, s.Err)
	}
	if err := d.Run(ctx, []*ratelimit.Statement{s}); err == nil {
		t.Error("a dead server answers")
	}
	if err := c.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	again := &ratelimit.Statement{SQL: "SELECT 1"}
	for attempt := 1; d.Run(ctx, []*ratelimit.Statement{again}) != nil; attempt++ {
		if attempt == 10 {
			t.Fatalf("the %d. call after the server's return: %v", attempt, again.Err)
		}
	}
}

// testServerHangs stops a server's processes: calls end with their contexts.
func testServerHangs(t *testing.T, open func(t testing.TB, dsn string) ratelimit.DB) {
	c := cluster.Private(t, cluster.Options{})
	d := &db{t: t, DB: open(t, c.DSN("postgres"))}
	defer d.Close()
	d.run(&ratelimit.Statement{SQL: "SELECT 1"})
	closing := &db{t: t, DB: open(t, c.DSN("postgres"))}
	closing.run(&ratelimit.Statement{SQL: "SELECT 1"})
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 3; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		s := &ratelimit.Statement{SQL: "SELECT 1"}
		started := time.Now()
		err := d.Run(ctx, []*ratelimit.Statement{s})
		took := time.Since(started)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || s.Err == nil || took > soon {
			t.Errorf("call %d to a server that hangs: %v, %v after %v", i, err, s.Err, took)
		}
	}
	waiting := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon+time.Second)
		defer cancel()
		waiting <- closing.Run(ctx, []*ratelimit.Statement{{SQL: "SELECT 1"}})
	}()
	time.Sleep(100 * time.Millisecond) // before or after it has begun: Close waits for neither
	started := time.Now()
	closing.Close()
	if took := time.Since(started); took > soon {
		t.Errorf("Close took %v", took)
	}
	if err := <-waiting; err == nil {
		t.Error("a server that hangs answers")
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	again := &ratelimit.Statement{SQL: "SELECT 1"}
	for attempt := 1; d.Run(ctx, []*ratelimit.Statement{again}) != nil; attempt++ {
		if attempt == 10 {
			t.Fatalf("the %d. call after the server went on: %v", attempt, again.Err)
		}
	}
}
