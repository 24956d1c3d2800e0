package command_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Commands wait for a lock that another session holds for about 10 seconds. Then they name the session, and
// have changed nothing, even if the lock becomes free later.
func TestCommandsSayWhoHoldsALock(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it waits until commands give up")
	}
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=7")
	s.sql("DROP FUNCTION rate_limit_policy_version")
	ctx := context.Background()
	for _, c := range []struct {
		lockSQL string // of the other session
		args    []string
	}{
		{lockSQL: "UPDATE rate_limit_rules SET comment = 'x'",
			args: []string{"rules", "set", "plan", "per_hour=9"}},
		{lockSQL: "LOCK TABLE rate_limit_rules IN ROW EXCLUSIVE MODE", args: []string{"migrate"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			conn := cluster.Connect(t, s.dsn)
			defer conn.Close(ctx)
			if _, err := conn.Exec(ctx,
				"SET application_name = 'the holder'; BEGIN; "+c.lockSQL); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			out := s.run(c.args...)
			want := regexp.MustCompile(
				fmt.Sprintf(`^waited \d\ds for a lock that another session holds: pid %d, application the `+
					`holder, role \w+, idle in transaction, transaction since 20\S+ \S+, statement since `+
					`20\S+ \S+: end it`, conn.PgConn().PID()))
			if out.err == nil || !want.MatchString(out.err.Error()) || time.Since(begun) < 8*time.Second {
				t.Errorf("the error is %v, after %s; want %s", out.err, time.Since(begun), want)
			}
			if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got := s.must("rules", "list"); !strings.Contains(got, "per_hour 7/1h") {
		t.Errorf("the rules are %q, want per_hour 7/1h unchanged", got)
	}
}

// A command takes the lock on its row, and then that on the table. A session that takes these locks in the
// other order does not make the command fail.
func TestACommandSurvivesADeadlock(t *testing.T) {
	s := newShell(t, schema.File)
	s.sql("INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'anonymous')")
	s.must("keys", "create", "--user", "ann")
	ctx := t.Context()
	conn := cluster.Connect(t, s.dsn)
	defer conn.Close(context.Background())
	// The server ends the transaction of the command, which looks for deadlocks first.
	if _, err := conn.Exec(ctx, `SET deadlock_timeout = '60s'; BEGIN;
		LOCK TABLE rate_limit_api_keys IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan output, 1)
	go func() { ended <- s.run("keys", "set", "1", "name=app") }()
	await.Within(t, time.Minute, "the command waits", func() bool {
		return one[bool](
			s,
			`SELECT EXISTS (SELECT FROM pg_locks
				WHERE NOT granted AND relation = 'rate_limit_api_keys'::regclass)`,
		)
	})
	if _, err := conn.Exec(ctx, "UPDATE rate_limit_api_keys SET hint = 'x'; COMMIT"); err != nil {
		t.Fatal(err)
	}
	if out := <-ended; out.err != nil {
		t.Errorf("keys set: %v, want no error", out.err)
	}
	if got := one[string](s, "SELECT hint || ' ' || name FROM rate_limit_api_keys"); got != "x app" {
		t.Errorf("the key has the hint and the name %q, want %q", got, "x app")
	}
}

// A role that may not archive gets an error that names the role that may.
func TestArchiveNamesTheRoleThatMay(t *testing.T) {
	s := newShell(t, schema.File)
	role := "r_" + one[string](s, "SELECT current_database()::text")
	s.sql("CREATE ROLE " + role)
	t.Cleanup(func() { s.sql("DROP OWNED BY " + role); s.sql("DROP ROLE " + role) })
	s.sql("GRANT SELECT ON rate_limit_audit TO " + role)
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - 61)")
	to := t.TempDir()
	owner := one[string](s, "SELECT current_user::text")
	s.as(role).fails([]string{"the role \"" + role + "\" may not archive", "GRANT " + owner + " TO "},
		"archive", "--before", "60d", "--to", to)
	if files, err := filepath.Glob(filepath.Join(to, "*")); err != nil || len(files) > 0 {
		t.Errorf("%v, %v: want no file", files, err)
	}
	s.sql("GRANT " + owner + " TO " + role)
	if out := s.as(role).run("archive", "--before", "60d", "--to", to); out.err != nil {
		t.Errorf("as a member of the owner: %v, want no error", out.err)
	}
}
