package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// testFewerConnections: the server allows an account one connection, the DB would open more.
// Calls take turns with the connection. They fail only when their time is over, or when there
// is no connection at all.
func testFewerConnections(t *testing.T, d *db) {
	few := &db{t: t, DB: d.open(t, cluster.Limited(t, d.dsn, 1))}
	defer few.Close()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 10 {
				if s := statement("SELECT pg_sleep(0.01)"); few.try(s) != nil || s.Err != nil {
					t.Errorf("beside others: %v", s.Err)
				}
			}
			if err := few.tryExec("SELECT 1"); err != nil {
				t.Errorf("Exec beside others: %v", err)
			}
		})
	}
	group.Wait()
	busy := make(chan error, 1)
	go func() { busy <- few.try(statement("SELECT pg_sleep(1)")) }()
	d.sessions(asleep, 1)
	if err := few.tryFor(200*time.Millisecond, statement("SELECT 1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another call has the connection: %v", err)
	}
	if err := <-busy; err != nil {
		t.Errorf("the call that has the connection: %v", err)
	}
	few.run(statement("SELECT 1"))

	none := &db{t: t, DB: d.open(t, cluster.Limited(t, d.dsn, 0))}
	defer none.Close()
	for range 4 {
		group.Go(func() {
			if err := none.tryFor(soon, statement("SELECT 1")); err == nil || !strings.Contains(err.Error(), "too many connections") {
				t.Errorf("no connection at all: %v", err)
			}
		})
	}
	group.Wait()
}

// testRefusedOnce: the server refuses one login while a call keeps the only connection for
// long. The call that waits gets a connection as soon as the server allows another one.
func testRefusedOnce(t *testing.T, open openDB) {
	dsn := cluster.Open(t)
	other := &db{t: t, DB: open(t, dsn)}
	defer other.Close()
	d := &db{t: t, DB: open(t, secondRefused(t, dsn))}
	defer d.Close()
	busy, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { _ = d.Run(busy, []*pgdb.Statement{statement("SELECT pg_sleep(600)")}) })
	defer ended.Wait()
	defer stop()
	other.sessions(asleep, 1)
	if s := statement("SELECT 1"); d.try(s) != nil || s.Err != nil {
		t.Errorf("beside a call that takes long: %v", s.Err)
	}
}

// secondRefused returns a DSN that leads to the server of dsn through a proxy. The proxy answers the
// second login as a server that has too many connections.
func secondRefused(t *testing.T, dsn string) string {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	target := address.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address.Host = listener.Addr().String()
	var running sync.WaitGroup
	running.Go(func() {
		for number := 1; ; number++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				if number == 2 {
					_, _ = client.Read(make([]byte, 1024)) // the start of the login
					_, _ = client.Write([]byte("E\x00\x00\x00\x29SFATAL\x00C53300\x00Mtoo many connections\x00\x00"))
					return
				}
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				running.Go(func() { _, _ = io.Copy(client, server) })
				_, _ = io.Copy(server, client)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return address.String()
}

// testCauseOverASlowNetwork: a login takes longer than any call. The calls tell nevertheless why
// there is no connection.
func testCauseOverASlowNetwork(t *testing.T, open openDB) {
	_, dsn := slownet.ListenFor(t, cluster.Limited(t, cluster.Open(t), 0), 100*time.Millisecond)
	d := open(t, dsn)
	defer d.Close()
	var err error
	for until := time.Now().Add(timeout); time.Now().Before(until); {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		err = d.Run(ctx, []*pgdb.Statement{statement("SELECT 1")})
		cancel()
		if err == nil {
			t.Fatal("an answer without a connection")
		}
		if errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "too many connections") {
			return
		}
	}
	t.Errorf("no cause: %v", err)
}

// withSettings is a DSN with more parameters.
func withSettings(t *testing.T, dsn string, settings ...string) string {
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

// testKeptConnection: after a pause of any length there is still one connection, and only
// one. The end of that connection costs no call.
func testKeptConnection(t *testing.T, d *db) {
	idle := &db{t: t, DB: d.open(t, withSettings(t, d.dsn, "pool_max_conn_idle_time", "200ms", "pool_health_check_period", "50ms"))}
	defer idle.Close()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { idle.run(statement("SELECT pg_sleep(0.3)")) })
	}
	both.Wait()
	one := func() {
		t.Helper()
		for until := time.Now().Add(timeout); cluster.Connections(t, d.dsn) != 1; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%d connections are kept, want one", cluster.Connections(t, d.dsn))
			}
		}
	}
	one()
	pid := idle.cell("SELECT pg_backend_pid()::bigint")
	time.Sleep(time.Second) // five times as long as a connection may be idle
	one()
	if after := idle.cell("SELECT pg_backend_pid()::bigint"); after != pid {
		t.Errorf("after a pause another connection is used")
	}
	d.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	time.Sleep(soon / 8) // until the end has arrived
	idle.run(statement("SELECT 1"))
}

// testReplacedConnection: the connection that is kept is replaced when it is too old, before
// the next call.
func testReplacedConnection(t *testing.T, d *db) {
	old := &db{t: t, DB: d.open(t, withSettings(t, d.dsn, "pool_max_conn_lifetime", "300ms", "pool_max_conn_idle_time", "100ms", "pool_health_check_period", "50ms"))}
	defer old.Close()
	old.run(statement("SELECT 1"))
	const first = "SELECT min(pid)::bigint FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
	d.sessions("true", 1)
	pid := d.cell(first)
	for until := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		if now := d.cell(first); now != pid && now != "NULL" {
			return
		}
		if time.Now().After(until) {
			t.Fatal("no new connection")
		}
	}
}
