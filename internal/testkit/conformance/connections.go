package conformance

import (
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// testFewerConnections checks that calls take turns if the server allows fewer connections than the DB would
// open. A waiting call gets a connection as soon as the server allows one more, or fails at its deadline. If
// the server allows no connection at all, calls fail with the server's error.
func testFewerConnections(t *testing.T, d *db) {
	limited, err := url.Parse(cluster.Limited(t, d.dsn, 1))
	if err != nil {
		t.Fatal(err)
	}
	few := d.open.connect(t, limited.String())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 10 {
				if s := statement("SELECT pg_sleep(0.01)"); few.try(s) != nil || s.Err != nil {
					t.Errorf("Run beside others: error %v, want none", s.Err)
				}
			}
			if err := few.tryExec("SELECT 1"); err != nil {
				t.Errorf("Exec beside others: error %v, want none", err)
			}
		})
	}
	group.Wait()
	busy := make(chan error, 1)
	const untilItMayEnd = "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_class WHERE relname = " +
		"'it_may_end') LOOP PERFORM pg_sleep(0.01); END LOOP; END $$"
	go func() { busy <- few.tryFor(time.Minute, statement(untilItMayEnd)) }()
	d.awaitSessions("query LIKE 'DO %' AND state = 'active'", 1)
	err = few.tryFor(200*time.Millisecond, statement("SELECT 1"))
	if !errors.Is(err, pgdb.ErrNotSent) || errors.Is(err, pgdb.ErrConnectionLost) {
		t.Errorf("while another call has the connection: error %v, want ErrNotSent without ErrConnectionLost",
			err)
	}
	waiting, waits := statement("SELECT 1"), make(chan error, 1)
	go func() { waits <- few.try(waiting) }()
	time.Sleep(100 * time.Millisecond) // the server refuses its login
	d.exec("ALTER ROLE " + limited.User.Username() + " CONNECTION LIMIT 2")
	if err := errors.Join(<-waits, waiting.Err); err != nil {
		t.Errorf("when the server allows another connection: error %v, want none", err)
	}
	d.exec("CREATE TABLE it_may_end ()")
	if err := <-busy; err != nil {
		t.Errorf("the call with the connection: error %v, want none", err)
	}
	few.ping()

	none := d.open.connect(t, cluster.Limited(t, d.dsn, 0))
	for range 4 {
		group.Go(func() {
			if err := none.try(statement("SELECT 1")); err == nil ||
				!strings.Contains(err.Error(), "too many connections") {
				t.Errorf("no connection: error %v, want too many connections", err)
			}
		})
	}
	group.Wait()
}

// testCauseOverASlowNetwork checks that the errors of calls name the cause of a missing connection, even if a
// login takes longer than any call.
func testCauseOverASlowNetwork(t *testing.T, open openDB) {
	_, dsn := slownet.ListenFor(t, cluster.Limited(t, cluster.Open(t), 0), 100*time.Millisecond)
	d := open.connect(t, dsn)
	var err error
	for until := time.Now().Add(timeout); time.Now().Before(until); {
		if err = d.tryFor(50*time.Millisecond, statement("SELECT 1")); err == nil {
			t.Fatal("a statement without a connection: no error, want one")
		}
		if errors.Is(err, pgdb.ErrNoAnswer) && strings.Contains(err.Error(), "too many connections") {
			return
		}
	}
	t.Errorf("error %v, want ErrNoAnswer and too many connections", err)
}

// WithSettings returns a DSN with parameters. settings has pairs of a name and a value.
func WithSettings(t testing.TB, dsn string, settings ...string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	for i := 0; i < len(settings); i += 2 {
		query.Set(settings[i], settings[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// testKeptConnection checks that the DB keeps exactly one idle connection, however long no call is made. If
// the server ends that connection, the next call still succeeds.
func testKeptConnection(t *testing.T, d *db) {
	idle := d.open.connect(t, WithSettings(t, d.dsn, "pool_max_conn_idle_time", "200ms",
		"pool_health_check_period", "50ms"))
	idle.openSeveral()
	awaitOne := func() {
		t.Helper()
		await.Within(t, timeout, "one connection is kept",
			func() bool { return cluster.Connections(t, d.dsn) == 1 })
	}
	awaitOne()
	pid := idle.process()
	time.Sleep(time.Second) // five times pool_max_conn_idle_time
	awaitOne()
	if after := idle.process(); after != pid {
		t.Errorf("after a pause, a statement runs on process %x, want %x", after, pid)
	}
	d.endSessions("true")
	await.Pause(arrival)
	idle.ping()
}

// testReplacedConnection checks that if its idle connection is older than pool_max_conn_lifetime, the DB
// replaces the connection without waiting for a call.
func testReplacedConnection(t *testing.T, d *db) {
	old := d.open.connect(t, WithSettings(t, d.dsn, "pool_max_conn_lifetime", "300ms",
		"pool_max_conn_idle_time", "100ms", "pool_health_check_period", "50ms"))
	old.ping()
	const pidSQL = "SELECT min(pid)::bigint" + fromOtherSessions + "true"
	d.awaitSessions("true", 1)
	pid := d.queryCell(pidSQL)
	await.Within(t, timeout, "a new connection",
		func() bool { now := d.queryCell(pidSQL); return now != pid && now != "NULL" })
}
