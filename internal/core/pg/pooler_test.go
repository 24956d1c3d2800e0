package pg_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// startPgBouncer starts PgBouncer with pool_mode = mode for a database and returns a DSN through it.
func startPgBouncer(t *testing.T, dsn, mode string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all runs it: it starts PgBouncer")
	}
	program, err := harness.Installed(t.Context(), "pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	server, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	port, config := harness.FreePort(t), filepath.Join(t.TempDir(), "pgbouncer.ini")
	password := ""
	if server.Password != "" {
		password = " password=" + server.Password
	}
	if strings.HasPrefix(server.Host, "/") {
		server.Host = "127.0.0.1"
	}
	content := fmt.Sprintf(
		"[databases]\n* = host=%s port=%d user=%s%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = "+
			"%d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n",
		server.Host, server.Port, server.User, password, port, mode)
	if err := os.WriteFile(config, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", config}
	if os.Getuid() == 0 {
		args = []string{"-q", "-u", "nobody", config} // PgBouncer does not run as root
	}
	pooler := exec.Command(program, args...)
	if err := pooler.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pooler.Process.Kill(); _ = pooler.Wait() })
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	u.RawQuery = "sslmode=disable"
	through := u.String()
	await.Within(t, time.Minute, "PgBouncer", func() bool {
		conn, err := pgx.Connect(t.Context(), through)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err == nil
	})
	return through
}

// Documented settings without an effect on decisions have none if a pooler is between the proxy and the
// server.
func TestHarmlessSettingsThroughPooler(t *testing.T) {
	for _, mode := range []string{"transaction", "statement"} {
		for name, open := range drivers.All {
			t.Run(mode+" "+name, func(t *testing.T) {
				dsn := cluster.Open(t)
				applyHarmlessSettings(t, dsn)
				db := open(t, startPgBouncer(t, dsn, mode))
				defer db.Close()
				if reports := usePolicyAndHistory(t, db, "/b"); reports != "" {
					t.Errorf("the history reports %q, want nothing", reports)
				}
				decide(t, db, 100)
			})
		}
	}
}

// A pooler in statement mode may run each statement of a transaction in another session. The guard has turned
// JIT off only in the first of these sessions, so ReadGuards detects the others by JIT.
func TestDividedTransactionIsDetected(t *testing.T) {
	guarded := pg.Guard([]*pgdb.Statement{{SQL: "SELECT 1"}}, false)
	replaces := guarded[2]
	for jit, want := range []error{nil, pg.ErrSeveralSessions} {
		replaces.Result = nil
		for _, value := range []int{0, 0, jit, 0} {
			replaces.Result = binary.BigEndian.AppendUint32(replaces.Result, 8)
			replaces.Result = binary.BigEndian.AppendUint64(replaces.Result, uint64(value))
		}
		if _, err := pg.ReadGuards(guarded); !errors.Is(err, want) {
			t.Errorf("ReadGuards with jit %d = %v, want %v", jit, err, want)
		}
	}
}
