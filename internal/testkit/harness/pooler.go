package harness

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Pooler starts a PgBouncer in transaction mode in front of a database, and returns its DSN.
func Pooler(t testing.TB, dsn string) string {
	t.Helper()
	program, err := Installed(t.Context(), "pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	dir, port := t.TempDir(), FreePort(t)
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(poolerSettings, server.Hostname(), server.Port(), port, dir)
	users := strconv.Quote(server.User.Username()) + ` ""`
	for path, content := range map[string]string{file: text, filepath.Join(dir, "users"): users} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil { //nolint:gosec // for its user
			t.Fatal(err)
		}
	}
	args := []string{file}
	if os.Geteuid() == 0 { // PgBouncer does not run as root
		args = []string{"-u", "postgres", file}
	}
	address := fmt.Sprint("127.0.0.1:", port)
	process := Start(t, Program{Path: program, Args: args, Dir: dir})
	process.AwaitAddress(t, address)
	t.Cleanup(func() { _ = process.Kill() }) // its status after SIGTERM is 1
	server.Host = address
	return server.String()
}

const poolerSettings = `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s/users
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
`
