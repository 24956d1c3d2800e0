package command_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

func TestMigrate(t *testing.T) {
	s := newShell(t)
	s.fails([]string{"the tables of the policy are missing", "caddy pg-ratelimit migrate"}, "rules", "list")
	if got := s.must("migrate"); got != "tables of the counters: created\ntables of the history: created\ntables of the policy: created\n" {
		t.Errorf("the first time it printed %q", got)
	}
	s.must("rules", "set", "plan", "per_hour=7")
	if got := s.must("migrate", "--json"); got != "{\n  \"counters\": \"up to date\",\n  \"history\": \"up to date\",\n  \"policy\": \"up to date\"\n}\n" {
		t.Errorf("the second time it printed %q", got)
	}
	s.sql("ALTER TABLE rate_limit_ephemeral DROP COLUMN granted; DROP FUNCTION rate_limit_policy_version, rate_limit_history_version")
	if got := s.must("migrate"); got != "tables of the counters: upgraded\ntables of the history: upgraded\ntables of the policy: upgraded\n" {
		t.Errorf("of older tables it printed %q", got)
	}
	if got := s.must("rules", "list"); !strings.Contains(got, "per_hour 7/1h") {
		t.Errorf("after the upgrade there are %q", got)
	}
}

// What a command cannot use because another program has a table of the same name is named, and
// migrate does not send people in circles.
func TestATableOfAnotherProgramIsNamed(t *testing.T) {
	for table, use := range map[string][]string{"rate_limit_rules": {"rules", "list"}, "rate_limit_metrics": {"usage", "acme"}} {
		s := newShell(t)
		s.sql("CREATE TABLE " + table + " (rule_id uuid PRIMARY KEY, rule_name text)")
		want := []string{"the table public." + table + " is of another program", "search_path"}
		s.fails(want, "migrate")
		s.fails(want, use...)
		s.fails(want[:1], "uninstall", "--yes")
		s.sql("CREATE SCHEMA limits")
		own := &shell{t: t, dsn: s.dsn + "&search_path=limits"}
		own.must("migrate")
		own.must("rules", "list")
	}
}

// uninstall leaves nothing of ours and everything else.
func TestUninstall(t *testing.T) {
	s := newShell(t)
	if got := s.must("uninstall", "--yes"); got != "There is nothing to drop.\n" {
		t.Errorf("of an empty database: %q", got)
	}
	const left = `SELECT count(*) FROM (SELECT relname AS name FROM pg_class UNION ALL SELECT proname FROM pg_proc) AS a WHERE name LIKE 'rate\_limit\_%'`
	s.must("migrate")
	s.must("upkeep")
	for _, name := range []string{"rate_limit_audit_20260101", "rate_limit_audit_20260101_2"} {
		s.sql("SELECT rate_limit_make_partition('2026-01-01'); ALTER TABLE rate_limit_audit DETACH PARTITION " + name)
	}
	s.sql("CREATE TABLE rate_limit_mine (x int); CREATE VIEW mine AS SELECT * FROM rate_limit_tiers")
	all := one[int64](s, left)
	s.fails([]string{"nothing was dropped"}, "uninstall")
	s.sql("INSERT INTO rate_limit_nodes (node, seen) VALUES ('edge-1', now() + interval '1 min')")
	s.fails([]string{"edge-1"}, "uninstall", "--yes")
	s.sql("UPDATE rate_limit_nodes SET seen = now() - interval '2 minutes'")
	s.fails([]string{"view mine depends on table rate_limit_tiers"}, "uninstall", "--yes")
	if n := one[int64](s, left); n != all {
		t.Errorf("%d of %d parts are left after an uninstall that failed", n, all)
	}
	s.sql("DROP VIEW mine")
	s.stdin = "yes\n"
	if got := s.must("uninstall"); !strings.Contains(got, "public.rate_limit_rules") || !strings.Contains(got, "public.rate_limit_log_changes()") {
		t.Errorf("uninstall lists %q", got)
	}
	if n := one[int64](s, left); n != 1 {
		t.Errorf("%d parts are left, want the table of another program alone", n)
	}
	s.must("migrate")
}

func TestMigratePrintsWhatItRuns(t *testing.T) {
	s := newShell(t)
	// It needs no database.
	out := s.caddy("pg-ratelimit", "migrate", "--print")
	if out.err != nil || out.stdout != schema.File {
		t.Errorf("migrate --print is not the schema: %v, %d bytes of %d", out.err, len(out.stdout), len(schema.File))
	}
	s.sql(out.stdout)
	if got := s.must("migrate"); got != "tables of the counters: up to date\ntables of the history: up to date\ntables of the policy: up to date\n" {
		t.Errorf("after the SQL that it prints, migrate printed %q", got)
	}
}

// root is the root of the repository. Tests change the folder.
var root = func() string {
	folder, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return folder
}()

// as runs commands as a role.
func (s *shell) as(role string) *shell {
	return &shell{t: s.t, dsn: s.dsn + "&options=-c%20role%3D" + role}
}
