package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
	s.sql("INSERT INTO rate_limit_nodes (node) VALUES ('edge-1')")
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
	file, err := os.ReadFile(filepath.Join(root, "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	// It needs no database.
	if out := s.caddy("pg-ratelimit", "migrate", "--print"); out.err != nil || out.stdout != string(file) {
		t.Errorf("migrate --print is not schema.sql: %v, %d bytes of %d", out.err, len(out.stdout), len(file))
	}
	s.sql(string(file))
	if got := s.must("migrate"); got != "tables of the counters: up to date\ntables of the history: up to date\ntables of the policy: up to date\n" {
		t.Errorf("after schema.sql migrate printed %q", got)
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

// The privileges of the roles in docs/policy.md are enough for administrators, and not too much
// for proxies.
func TestTheRolesOfTheDocumentation(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	database := one[string](s, "SELECT current_database()::text")
	proxy, administrator := "p_"+database, "a_"+database
	s.sql("CREATE ROLE " + proxy)
	s.sql("CREATE ROLE " + administrator)
	t.Cleanup(func() {
		for _, role := range []string{proxy, administrator} {
			s.sql("DROP OWNED BY " + role)
			s.sql("DROP ROLE " + role)
		}
	})
	text, err := os.ReadFile(filepath.Join(root, "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Roles\n")
	section, _, _ = strings.Cut(section, "\n## ")
	grants := regexp.MustCompile(`(?m)^GRANT .*;$`).FindAllString(section, -1)
	if len(grants) == 0 {
		t.Fatal("docs/policy.md has no GRANT")
	}
	for _, grant := range grants {
		s.sql(strings.NewReplacer(" TO proxy;", " TO "+proxy, " TO administrator;", " TO "+administrator).Replace(grant))
	}

	a := s.as(administrator)
	s.sql("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('rule/plan/per_hour', 'acme', 1, now(), now() + interval '2 h')")
	s.must("upkeep")
	s.sql("INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, key, node) VALUES (now(), 1, 1, 'allowed', 'rule/plan', 'acme', 'n')")
	for _, args := range [][]string{
		{"migrate"}, {"rules", "set", "plan", "per_hour=7", "limit.ten=3/10s", "paths="}, {"rules", "list"}, {"users", "set", "acme", "tier=anonymous", "plan/per_hour=9"},
		{"users", "get", "acme"}, {"keys", "create", "--user", "acme"}, {"keys", "list"}, {"keys", "rotate", "1"}, {"keys", "set", "2", "plan/per_hour=5", "tier=anonymous"}, {"tiers", "list"}, {"tiers", "set", "spare"}, {"tiers", "rename", "spare", "rest"}, {"tiers", "delete", "rest"}, {"explain", "--key-id", "2", "--ip", "192.0.2.1"},
		{"audit"}, {"top", "--since", "1h"}, {"usage", "acme"}, {"replay", "--rule", "plan", "per_hour=3"}, {"upkeep"}, {"forget", "--user", "acme", "--dry-run"},
		{"top"}, {"get", "rule/plan/per_hour", "acme"}, {"reset", "rule/plan/per_hour", "acme"}, {"keys", "revoke", "2"}, {"ban", "192.0.2.0/24"}, {"bans"}, {"unban", "192.0.2.0/24"},
		{"users", "ban", "acme"}, {"users", "unban", "acme"}, {"rules", "disable", "plan"}, {"rules", "enable", "plan"}, {"rules", "rename", "plan", "plans"}, {"rules", "rename", "plans", "plan"}, {"changes"}, {"users", "delete", "acme"}, {"nodes"}, {"pause", "--for", "1h"}, {"resume"}, {"rules", "delete", "plan"},
		{"policy", "export", "--users"}, {"policy", "diff", "--users", "-"}, {"policy", "apply", "--users", "-"},
	} {
		a.stdin = "tiers: []\nusers: []\nrules: [{name: plan, action: block}]\n"
		if out := a.run(args...); out.err != nil {
			t.Errorf("the administrator's %q: %v", args, out.err)
		}
	}

	s.sql("INSERT INTO rate_limit_usage (day, user_id, requests, last_request) VALUES (now()::date, 'blue', 1, now())")
	a.must("users", "set", "blue", "tier=anonymous")
	if got := a.must("users", "list"); !strings.Contains(got, "TODAY") {
		t.Errorf("the administrator does not see what the users did: %q", got)
	}

	p := s.as(proxy)
	p.stdin = a.stdin
	for _, args := range [][]string{
		{"rules", "set", "plan", "per_hour=7"}, {"rules", "set", "plan", "limit.ten=3/10s"}, {"rules", "delete", "plan"}, {"users", "set", "acme", "tier=anonymous"}, {"keys", "create", "--user", "acme"},
		{"keys", "revoke", "1"}, {"keys", "set", "1", "tier="}, {"tiers", "set", "new"}, {"users", "delete", "acme"}, {"ban", "192.0.2.0/24"}, {"unban", "192.0.2.0/24"}, {"changes"}, {"pause"}, {"resume"}, {"policy", "apply", "--users", "-"},
		{"audit"}, {"top", "--since", "1h"}, {"usage", "acme"}, {"forget", "--user", "acme"},
	} {
		p.fails([]string{"the role ", "may not do this: permission denied for", "see Roles in docs/policy.md"}, args...)
	}
	p.must("keys", "list")
}
