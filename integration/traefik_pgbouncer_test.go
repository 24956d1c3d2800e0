package integration

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// bouncerPool is how many server connections PgBouncer has for all clients: so
// few that the next statement of a client is often on another one.
const bouncerPool = 3

// TestBothAdaptersThroughPgBouncer has a Caddy and a Traefik count together
// through a PgBouncer in transaction mode.
func TestBothAdaptersThroughPgBouncer(t *testing.T) {
	t.Parallel()
	backend, direct := startBackend(t), cluster.Open(t)
	dsn := startPgBouncer(t, direct)
	path := func(algorithm string, durable bool) string {
		return "/" + algorithm + "/" + strconv.FormatBool(durable)
	}
	var byTraefik []route
	var byCaddy []caddyRoute
	for _, a := range algorithms {
		for _, table := range tables {
			at := path(a.name, table.durable)
			byTraefik = append(byTraefik, route{at, backend, decideAlways(object{
				"dsn": dsn, "prefix": a.name, "key": "everybody", "algorithm": a.name, "limit": a.limit, "durable": table.durable,
			})})
			byCaddy = append(byCaddy, caddyRoute{at, []string{
				exactly(a.name, "key everybody", "algorithm "+a.name, "limit "+a.limit, "durable "+onOff(table.durable)),
			}})
		}
	}
	tr, c := startTraefik(t, byTraefik), startCaddy(t, dsn, byCaddy...)
	forEachKind(t, func(t *testing.T, algorithm, _ string, durable bool) {
		at := path(algorithm, durable)
		checkExact(t, tr.url+at, c.url+at)
	})
	if n := cluster.Connections(t, direct); n > bouncerPool {
		t.Errorf("%d connections to the server, of a pool of %d: not all went through PgBouncer", n, bouncerPool)
	}
}

// startPgBouncer starts a PgBouncer in transaction mode in front of a database,
// and returns the database's DSN there.
func startPgBouncer(t *testing.T, direct string) (dsn string) {
	t.Helper()
	program, err := harness.Installed(t.Context(), "pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	server, err := pgx.ParseConfig(direct)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	users, config := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	port := harness.FreePort(t)
	account := ""
	if os.Geteuid() == 0 {
		account = "user = nobody" // it does not run as root
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range map[string]string{
		users: fmt.Sprintf("%q %q\n", server.User, server.Password),
		config: fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
%s
`, server.Host, server.Port, port, users, bouncerPool, account),
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := harness.Start(t, harness.Program{Name: "pgbouncer", Path: program, Args: []string{config}, Dir: dir})
	t.Cleanup(func() {
		// Asked to end, it ends with a failure.
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	p.AwaitAddress(t, "127.0.0.1:"+strconv.Itoa(port))
	u := url.URL{Scheme: "postgres", User: url.User(server.User), Host: "127.0.0.1:" + strconv.Itoa(port), Path: "/" + server.Database, RawQuery: "sslmode=disable"}
	return u.String()
}
