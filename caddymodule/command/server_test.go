package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The SQL that `migrate --print` prints without a database creates the tables that `migrate` creates.
func TestMigratePrintsItsSQL(t *testing.T) {
	s := newShell(t)
	// s.caddy runs the command without --dsn.
	out := s.caddy("pg-ratelimit", "migrate", "--print")
	if out.err != nil || out.stdout != schema.File {
		t.Errorf("migrate --print wrote %d bytes, error %v; want the schema's %d bytes",
			len(out.stdout), out.err, len(schema.File))
	}
	s.sql(out.stdout)
	got, want := s.mustRun("migrate"), "counters  up to date\nhistory   up to date\npolicy    up to date\n"
	if got != want {
		t.Errorf("after the SQL of --print, migrate printed %q, want %q", got, want)
	}
}

// The commands `migrate` and `state` name a role that was granted directly to change the policy.
func TestMigrateAndStateNameDirectGrants(t *testing.T) {
	s := newShell(t, schema.File)
	role := s.newRole()
	s.sql("GRANT UPDATE ON rate_limit_users TO " + role)
	want := "The role " + role + " may change the policy, which rate_limit_grant has not granted. To take " +
		"that back: REVOKE UPDATE ON rate_limit_users FROM " + role + "\n"
	for _, command := range []string{"migrate", "state"} {
		if got := s.mustRun(command); !strings.HasSuffix(got, want) {
			t.Errorf("%s printed %q, want %q at its end", command, got, want)
		}
	}
	s.sql("SELECT rate_limit_grant('" + role + "', 'administrator')")
	if got := s.mustRun("migrate", "--json"); strings.Contains(got, "exposed") {
		t.Errorf("migrate printed %q, want nothing about a role with a grant", got)
	}
}

// newRole creates a role without privileges, which the end of the test drops.
func (s *shell) newRole() string {
	role := "r_" + cluster.Query[string](s.t, s.dsn, "SELECT current_database()::text")
	s.sql("CREATE ROLE " + role)
	s.t.Cleanup(func() { s.sql("DROP OWNED BY " + role); s.sql("DROP ROLE " + role) })
	return role
}

// asRole returns a shell that runs commands as a role.
func (s *shell) asRole(role string) *shell {
	return &shell{t: s.t, dsn: s.dsn + "&options=-c%20role%3D" + role}
}
