//go:build rehearse

package integration

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rehearsePgBouncer fails over to a standby while the proxies connect through a PgBouncer. When PgBouncer's
// configuration names the new primary, the proxies decide again within 2 seconds. That a failover loses no
// counts is checked by rehearseRestoreAndFailover.
func rehearsePgBouncer(t *testing.T) {
	program, err := harness.Installed(t.Context(), "pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	r := newRehearsal(t)
	port := harness.FreePort(t)
	config := r.file("pgbouncer.ini", fmt.Appendf(nil, `[databases]
postgres = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s/userlist.txt
admin_users = postgres
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
server_login_retry = 1
logfile = %s/pgbouncer.log
pidfile = %s/pgbouncer.pid
`, r.variable("PGPORT"), port, r.dir, r.dir, r.dir))
	r.env = append(r.env, "POOLER_CONFIG="+config, "POOLER_PORT="+strconv.Itoa(port))
	r.file("userlist.txt", []byte("\"postgres\" \"\"\n"))
	r.sh("a PgBouncer", program+` -q -d "$POOLER_CONFIG"`)
	t.Cleanup(func() { r.sh("the end of PgBouncer", `kill -9 $(cat pgbouncer.pid)`) })
	direct := r.dsn
	r.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	r.startProxies()
	r.awaitDecisions()
	r.dsn = direct
	r.replicateSynchronously()
	r.loseThePrimary()
	r.page("Fail over", 0)
	r.page("PgBouncer", 0)
	r.decidedWithin("the change of PgBouncer", time.Now(), 2*time.Second)
}
