package command_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// A command that waits for a lock fails after about 10 seconds, and has changed nothing. The error names the
// session that holds the lock.
func TestCommandsNameTheHolderOfALock(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it waits for lock timeouts")
	}
	s := newShell(t, schema.File)
	s.mustRun("rules", "set", "plan", "per_hour=7")
	s.sql(sqltest.Older)
	ctx := context.Background()
	for _, c := range []struct {
		lockSQL string // the statement of the session that holds the lock
		args    []string
	}{
		{lockSQL: "UPDATE rate_limit_rules SET comment = 'x'",
			args: []string{"rules", "set", "plan", "per_hour=9"}},
		{lockSQL: "LOCK TABLE rate_limit_rules IN ROW EXCLUSIVE MODE", args: []string{"migrate"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			conn := cluster.Connect(t, s.dsn)
			defer conn.Close(ctx)
			_, err := conn.Exec(ctx, "SET application_name = 'the holder'; BEGIN; "+c.lockSQL)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			out := s.run(c.args...)
			want := regexp.MustCompile(
				fmt.Sprintf(`^waited \d\ds for a lock of pid %d, application the holder, role \w+, idle in `+
					`transaction, transaction since 20\S+ \S+, statement since 20\S+ \S+: end that`,
					conn.PgConn().PID()))
			if out.err == nil || !want.MatchString(out.err.Error()) {
				t.Errorf("the error is %v, want %s", out.err, want)
			}
			if waited := time.Since(start); waited < 8*time.Second {
				t.Errorf("the command waited %v, want at least 8 s", waited)
			}
			if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got := s.mustRun("rules", "list"); !strings.Contains(got, "per_hour 7/1h") {
		t.Errorf("the rules are %q, want per_hour 7/1h unchanged", got)
	}
}

// A command locks its row and then the table. The command succeeds beside a session that takes these locks in
// the other order, although both then wait for each other.
func TestCommandSurvivesDeadlock(t *testing.T) {
	s := newShell(t, schema.File)
	s.sql("INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'anonymous')")
	s.mustRun("keys", "create", "--user", "ann")
	ctx := t.Context()
	conn := cluster.Connect(t, s.dsn)
	defer conn.Close(context.Background())
	// The server ends the transaction that detects the deadlock. This timeout lets the command detect it.
	_, err := conn.Exec(ctx, `SET deadlock_timeout = '60s'; BEGIN;
		LOCK TABLE rate_limit_api_keys IN SHARE ROW EXCLUSIVE MODE`)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan output, 1)
	go func() { ended <- s.run("keys", "set", "1", "name=app") }()
	await.Within(t, time.Minute, "the command waits", func() bool {
		return cluster.Query[bool](t, s.dsn,
			`SELECT EXISTS (SELECT FROM pg_locks
				WHERE NOT granted AND relation = 'rate_limit_api_keys'::regclass)`,
		)
	})
	if _, err := conn.Exec(ctx, "UPDATE rate_limit_api_keys SET hint = 'x'; COMMIT"); err != nil {
		t.Fatal(err)
	}
	if out := <-ended; out.err != nil {
		t.Errorf("keys set: error %v, want none", out.err)
	}
	got := cluster.Query[string](t, s.dsn, "SELECT hint || ' ' || name FROM rate_limit_api_keys")
	if got != "x app" {
		t.Errorf("the key has the hint and name %q, want %q", got, "x app")
	}
}
