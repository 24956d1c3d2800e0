package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func queryText(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// exists tells whether the file or folder is there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestStopKeepsTheDataAndRestartTheAddress(t *testing.T) {
	c := Private(t, Options{})
	dsn := c.DSN("postgres")
	mustExec(t, Connect(t, dsn), "CREATE TABLE kept AS SELECT 42 AS n")

	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Fatal("a stopped server takes a connection")
	}
	if err := c.Stop(); err != nil {
		t.Fatalf("a second Stop: %v", err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.DSN("postgres") != dsn {
		t.Fatalf("after Restart the address is %s, was %s", c.DSN("postgres"), dsn)
	}
	if n := queryText(t, Connect(t, dsn), "SELECT n::text FROM kept"); n != "42" {
		t.Fatalf("the table holds %s, want 42", n)
	}
}

func TestKillIsACrash(t *testing.T) {
	c := Private(t, Options{})
	conn := Connect(t, c.DSN("postgres"))
	mustExec(t, conn, "CREATE TABLE logged AS SELECT 1 AS n")
	mustExec(t, conn, "CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS n")
	children, err := descendants(c.run.pid())
	if err != nil {
		t.Fatal(err)
	}
	if len(children) < 3 {
		t.Fatalf("the server has %d children, want at least 3", len(children))
	}

	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(children, c.run.pid()) {
		if p, there := all[pid]; there && p.state != 'Z' {
			t.Errorf("pid %d runs after Kill", pid)
		}
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn = Connect(t, c.DSN("postgres"))
	if n := queryText(t, conn, "SELECT count(*)::text FROM logged"); n != "1" {
		t.Errorf("after a crash the logged table has %s rows, want 1", n)
	}
	if n := queryText(t, conn, "SELECT count(*)::text FROM unlogged"); n != "0" {
		t.Errorf("after a crash the unlogged table has %s rows, want 0", n)
	}
}

func TestPauseHangsAndResumeGoesOn(t *testing.T) {
	c := Private(t, Options{})
	conn := Connect(t, c.DSN("postgres"))
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	// New connections are taken by the kernel and then hear nothing.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, c.DSN("postgres")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting to a paused server: %v, want %v", err, context.DeadlineExceeded)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a paused server answered: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatalf("after Resume: %v", err)
	}
	// A paused server can be stopped and killed, too.
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if c.Pause() == nil || c.Resume() == nil {
		t.Error("a stopped server can be paused or resumed")
	}
}

func TestDirIsUsedAgain(t *testing.T) {
	dir := usableDir(t)
	for i := range 2 {
		c, err := Start(t.Context(), Options{Dir: dir, Config: map[string]string{"work_mem": fmt.Sprintf("%dMB", 5+i)}})
		if err != nil {
			t.Fatal(err)
		}
		sockets := c.SocketDir()
		conn := Connect(t, c.DSN("postgres"))
		if i == 0 {
			mustExec(t, conn, "CREATE TABLE kept ()")
		}
		mustExec(t, conn, "SELECT FROM kept")
		if got, want := queryText(t, conn, "SHOW work_mem"), fmt.Sprintf("%dMB", 5+i); got != want {
			t.Errorf("start %d: work_mem is %s, want %s", i, got, want)
		}

		_, err = Start(t.Context(), Options{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "a server runs on") {
			t.Errorf("a second server on the same folder: %v, want an error that says so", err)
		}
		mustExec(t, conn, "SELECT 1")

		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if c.Dir() != dir || !exists(c.DataDir()) {
			t.Errorf("the data is in %s, want it kept in %s", c.Dir(), dir)
		}
		if exists(sockets) {
			t.Errorf("%s is there after Stop", sockets)
		}
	}
}

func TestATemporaryClusterGoesWithStop(t *testing.T) {
	c, err := Start(t.Context(), Options{Config: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	dir, sockets := c.Dir(), c.SocketDir()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if exists(dir) || exists(sockets) {
		t.Errorf("%s or %s is there after Stop", dir, sockets)
	}
	if err := c.Restart(t.Context()); err == nil {
		t.Error("a cluster that is removed can be restarted")
	}
}

func TestOptions(t *testing.T) {
	var log lockedBuffer
	c := Private(t, Options{
		Config: map[string]string{"fsync": "on", "max_connections": "17", "log_statement": "all", "application_name": `a 'quoted' \ name`},
		HBA:    "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
		Files:  map[string][]byte{"extra.txt": []byte("read me")},
		Log:    &log,
	})
	conn := Connect(t, c.DSN("postgres"))
	for sql, want := range map[string]string{
		"SHOW max_connections": "17",
		"SHOW fsync":           "on",
		"SHOW timezone":        "UTC",
		"SELECT datcollate FROM pg_database WHERE datname = 'postgres'": "C",
		"SHOW server_encoding":             "UTF8",
		"SHOW autovacuum":                  "on",
		"SELECT pg_read_file('extra.txt')": "read me",
		"SELECT reset_val FROM pg_settings WHERE name = 'application_name'": `a 'quoted' \ name`,
	} {
		if got := queryText(t, conn, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	mustExec(t, conn, "CREATE ROLE someone LOGIN PASSWORD 'right'")
	var refused *pgconn.PgError
	address := fmt.Sprintf("postgres://someone:%%s@127.0.0.1:%d/postgres?sslmode=disable", c.Port())
	if _, err := pgx.Connect(t.Context(), fmt.Sprintf(address, "wrong")); !errors.As(err, &refused) || refused.Code != "28P01" {
		t.Errorf("a wrong password: %v, want SQLSTATE 28P01", err)
	}
	Connect(t, fmt.Sprintf(address, "right"))
	Connect(t, fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", c.SocketDir(), c.Port()))

	if !strings.Contains(log.String(), "CREATE ROLE someone") {
		t.Errorf("Options.Log has not got what the server logs: %q", log.String())
	}
	if text, err := os.ReadFile(c.LogFile()); err != nil || !strings.Contains(string(text), "CREATE ROLE someone") {
		t.Errorf("LogFile: %q, %v", text, err)
	}
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	t.Setenv("TMPDIR", usableDir(t))
	_, err := Start(t.Context(), Options{Config: map[string]string{"fsync": "off", "shared_buffers": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("error is %v, want the server's own word on shared_buffers", err)
	}
	for _, config := range []map[string]string{{"two words": "1"}, {"work_mem": "1MB\nfsync = off"}} {
		if _, err := Start(t.Context(), Options{Config: config}); err == nil {
			t.Errorf("Config %q is taken", config)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v, want %v", err, context.Canceled)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestATakenPortIsToldApart(t *testing.T) {
	c := Private(t, Options{})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.Port()))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error is %v, want %v", err, errPortTaken)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAStalePidFileIsNoServer(t *testing.T) {
	c := Private(t, Options{})
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	// As after a restart of a container: the pid has gone to another program.
	path := filepath.Join(c.DataDir(), "postmaster.pid")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n%s", os.Getpid(), rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestADataFolderOfAnotherVersion(t *testing.T) {
	dir := usableDir(t)
	c, err := Start(t.Context(), Options{Dir: dir, Config: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.DataDir(), "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "was made by Postgres 9") {
		t.Errorf("error is %v, want it to name version 9", err)
	}
}

// usableDir is a folder that the server's account can use. t.TempDir is not
// one for root: its parent is root's alone.
func usableDir(t *testing.T) string {
	t.Helper()
	a, err := serverAccount("")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := a.temporaryFolder("pgrl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// lockedBuffer is a buffer that a server and a test may share.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
