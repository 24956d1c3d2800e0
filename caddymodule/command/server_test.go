package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The command `migrate` creates missing tables, does nothing if they are up to date, and upgrades older
// tables without a change to their rows. Without tables, another command fails with an error that names
// `migrate`.
func TestMigrateUpgradesTablesAndKeepsRows(t *testing.T) {
	s := newShell(t)
	s.expectError([]string{"tables are missing", "caddy pg-ratelimit migrate"}, "rules", "list")
	expectOutput := func(want string, args ...string) {
		t.Helper()
		if got := s.mustRun(append([]string{"migrate"}, args...)...); got != want {
			t.Errorf("migrate printed %q, want %q", got, want)
		}
	}
	expectOutput("counters  created\nhistory   created\npolicy    created\n")
	s.mustRun("rules", "set", "plan", "per_hour=7")
	expectOutput(`{
  "counters": "up to date",
  "history": "up to date",
  "policy": "up to date"
}
`, "--json")
	s.sql(
		"ALTER TABLE rate_limit_ephemeral DROP COLUMN granted; DROP FUNCTION rate_limit_policy_version, " +
			"rate_limit_history_version",
	)
	expectOutput("counters  upgraded\nhistory   upgraded\npolicy    upgraded\n")
	if got := s.mustRun("rules", "list"); !strings.Contains(got, "per_hour 7/1h") {
		t.Errorf("after the upgrade the rules are %q, want per_hour 7/1h", got)
	}
}

// If another program has a table with the same name, the error of `migrate` and of the commands that use the
// table names the table. In another schema, the commands then work.
func TestErrorNamesTableOfAnotherProgram(t *testing.T) {
	for table, use := range map[string][]string{
		"rate_limit_rules": {"rules", "list"}, "rate_limit_metrics": {"usage", "acme"},
	} {
		s := newShell(t)
		s.sql("CREATE TABLE " + table + " (rule_id uuid PRIMARY KEY, rule_name text)")
		want := []string{"the table public." + table + " is of another program", "search_path"}
		s.expectError(want, "migrate")
		s.expectError(want, use...)
		s.sql("CREATE SCHEMA limits")
		limits := &shell{t: t, dsn: s.dsn + "&search_path=limits"}
		limits.mustRun("migrate")
		limits.mustRun("rules", "list")
	}
}

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
