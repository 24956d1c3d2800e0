package command_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Commands wait for a lock that another session holds for about 10 seconds. Then they say which
// session it is, and have changed nothing, also when the lock becomes free later.
func TestCommandsSayWhoHoldsALock(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	s.must("rules", "set", "plan", "per_hour=7")
	s.sql("DROP FUNCTION rate_limit_policy_version")
	ctx := context.Background()
	for _, c := range []struct {
		held string // by the other session
		args []string
	}{
		{"UPDATE rate_limit_rules SET comment = 'x'", []string{"rules", "set", "plan", "per_hour=9"}},
		{"LOCK TABLE rate_limit_rules IN ROW EXCLUSIVE MODE", []string{"migrate"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			conn := cluster.Connect(t, s.dsn)
			defer conn.Close(ctx)
			if _, err := conn.Exec(ctx, "SET application_name = 'the holder'; BEGIN; "+c.held); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			out := s.run(c.args...)
			took := time.Since(begun)
			want := regexp.MustCompile(fmt.Sprintf(`^waited 1\ds for a lock that another session holds: pid %d, application the holder, role \w+, idle in transaction, transaction since 20\S+ \S+, statement since 20\S+ \S+: end it`, conn.PgConn().PID()))
			if out.err == nil || !want.MatchString(out.err.Error()) {
				t.Errorf("the error is %v, want %s", out.err, want)
			}
			if took < 8*time.Second || took > 20*time.Second {
				t.Errorf("the command took %s", took)
			}
			if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got := s.must("rules", "list"); !strings.Contains(got, "per_hour 7/1h") {
		t.Errorf("afterwards there are %q", got)
	}
}

// Twelve commands that make one rule, or one user, at the same time all succeed, and one of them
// says that it made it.
func TestManyCommandsMakeOneThing(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	for _, args := range [][]string{
		{"rules", "set", "plan", "per_hour=7"}, {"rules", "set", "limits", "limit.a=7/10s", "limit.b=8/20s"}, {"users", "set", "acme", "tier=anonymous", "plan/per_hour=9"},
	} {
		ended := make(chan output, 12)
		for n := 0; n < 12; n++ {
			more := append([]string{}, args...)
			if n%2 == 0 && args[0] == "rules" {
				more = append(more, "per_day=70")
			}
			go func() { ended <- s.run(more...) }()
		}
		created := 0
		for n := 0; n < 12; n++ {
			out := <-ended
			if out.err != nil {
				t.Errorf("%q: %v", args, out.err)
			}
			if strings.Contains(out.stdout, "is created.") {
				created++
			}
		}
		if created != 1 {
			t.Errorf("%q: %d of the commands say that they made it", args, created)
		}
	}
}

// A role that may not archive is told which role may.
func TestArchiveNamesTheRoleThatMay(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	role := "r_" + one[string](s, "SELECT current_database()::text")
	s.sql("CREATE ROLE " + role)
	t.Cleanup(func() { s.sql("DROP OWNED BY " + role); s.sql("DROP ROLE " + role) })
	s.sql("GRANT SELECT ON rate_limit_audit TO " + role)
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - 61)")
	to := t.TempDir()
	owner := one[string](s, "SELECT current_user::text")
	s.as(role).fails([]string{"the role \"" + role + "\" may not archive", "GRANT " + owner + " TO "}, "archive", "--before", "60d", "--to", to)
	if files, err := filepath.Glob(filepath.Join(to, "*")); err != nil || len(files) > 0 {
		t.Errorf("%v, %v: want no file", files, err)
	}
	s.sql("GRANT " + owner + " TO " + role)
	if out := s.as(role).run("archive", "--before", "60d", "--to", to); out.err != nil {
		t.Errorf("a member of the owner: %v", out.err)
	}
}
