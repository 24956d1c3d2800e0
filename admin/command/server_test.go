package command_test

import (
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
	got, want := s.mustRun("migrate"), "tables  up to date\n"
	if got != want {
		t.Errorf("after the SQL of --print, migrate printed %q, want %q", got, want)
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
