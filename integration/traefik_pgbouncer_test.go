package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
	program, err := pgBouncer(t.Context())
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

var errNoPgBouncer = errors.New("no PgBouncer on this machine: install one (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer)")

// installPgBouncer installs Debian's package, and keeps Debian from starting it
// as a service.
const installPgBouncer = `set -e
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then
	printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 pgbouncer`

// pgBouncer is the program, installed where it is missing and this account may.
func pgBouncer(ctx context.Context) (string, error) {
	if path := lookPgBouncer(); path != "" {
		return path, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", errNoPgBouncer
	}
	command := []string{"sh", "-c", installPgBouncer}
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return "", errNoPgBouncer
		}
		command = append([]string{"sudo", "-n"}, command...)
	}
	fmt.Fprintln(os.Stderr, "No PgBouncer on this machine: installing Debian's package (apt-get install pgbouncer)")
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%w (installing it: %w: %s)", errNoPgBouncer, err, lines[len(lines)-1])
	}
	if path := lookPgBouncer(); path != "" {
		return path, nil
	}
	return "", errNoPgBouncer
}

// lookPgBouncer finds the program, or "". Debian has it where only root looks.
func lookPgBouncer() string {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
