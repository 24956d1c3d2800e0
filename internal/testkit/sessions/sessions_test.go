package sessions_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sessions"
)

// stateSQL selects what a client may see of its session.
const stateSQL = `SELECT format('%s %s %s %s', current_setting('search_path'),
	current_setting('lock_timeout'),
	current_user, to_regclass('t')) || (SELECT count(*) FROM pg_prepared_statements)
	|| (SELECT count(*) FROM pg_listening_channels())
	|| (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())`

// A connection that reuses a session sees nothing of the connections before it.
func TestReusedSessionsAreLikeNewOnes(t *testing.T) {
	direct := cluster.Open(t)
	pooled := sessions.Reuse(t, direct)
	first, _ := connectAndRun(t, pooled, "SELECT 1")
	await.Within(t, time.Minute, "a connection that reuses the first session", func() bool {
		next, _ := connectAndRun(t, pooled, "SELECT 1")
		return next == first
	})
	for _, sql := range []string{
		"SET search_path = other; SET lock_timeout = '7s'",
		"SET ROLE pg_monitor",
		"SET SESSION AUTHORIZATION pg_monitor",
		"SELECT pg_advisory_lock(7)",
		"CREATE TEMP TABLE t (); PREPARE p AS SELECT 1; LISTEN c",
		"BEGIN; SET lock_timeout = '7s'; SELECT pg_advisory_lock(7)",
		"BEGIN; CREATE TABLE t (); SELECT 1 / 0",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = 700', current_database()); END $$",
	} {
		_, _ = connectAndRun(t, pooled, sql)
		_, got := connectAndRun(t, pooled, stateSQL)
		if _, want := connectAndRun(t, direct, stateSQL); got != want {
			t.Errorf("%s: the next connection sees %q, want %q as in a new session", sql, got, want)
		}
	}
}

// connectAndRun runs SQL, which may fail, on a connection of its own. It returns the session, and the first
// value of the last result.
func connectAndRun(t *testing.T, dsn, sql string) (pid uint32, value string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	results, _ := conn.PgConn().Exec(ctx, sql).ReadAll()
	if n := len(results); n > 0 && len(results[n-1].Rows) > 0 {
		value = string(results[n-1].Rows[0][0])
	}
	return conn.PgConn().PID(), value
}
