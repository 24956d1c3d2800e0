package schema_test

import (
	"testing"
)

// lines are the changes since the last call.
func (s *site) lines() string {
	s.t.Helper()
	text := s.text(`SELECT kind, ref, coalesce(before->>'tier', before->>'events', before->>'mode', (before IS NOT NULL)::text), coalesce(after->>'tier', after->>'events', after->>'mode', (after IS NOT NULL)::text)
		FROM rate_limit_changes ORDER BY seq`)
	s.exec("DELETE FROM rate_limit_changes")
	return text
}

func digest(s *site, key string) string { return s.text("SELECT encode(sha256('" + key + "'), 'hex')") }

// A change of each kind is one line: what was changed, and the row before and after.
func TestChangesAreLogged(t *testing.T) {
	s := newSite(t)
	s.lines()
	ann, x := digest(s, "ann"), digest(s, "x")
	for _, step := range []struct{ sql, want string }{
		{"SELECT rate_limit_rule('r', per_hour => 9)", "rule r false enforce\nlimit r/per_hour false 9"},
		{"SELECT rate_limit_rule('r', per_hour => 8)", "limit r/per_hour 9 8"},
		{"UPDATE rate_limit_rules SET mode = 'shadow'", "rule r enforce shadow"},
		{"UPDATE rate_limit_rules SET mode = 'shadow'", ""},
		{"INSERT INTO rate_limit_tiers (tier) VALUES ('gold')", "tier gold false gold"},
		{"UPDATE rate_limit_users SET tier = 'gold' WHERE user_id = 'ann'", "user ann free gold"},
		{"UPDATE rate_limit_users SET tier = 'gold' WHERE user_id = 'nobody'", ""},
		{"INSERT INTO rate_limit_overrides (rule, limit_name, tier, events) VALUES ('r', 'per_hour', " +
			"'gold', 1)", "override tier/gold false gold"},
		{"UPDATE rate_limit_overrides SET tier = NULL, user_id = 'ann'",
			"override tier/gold gold false\noverride user/ann false 1"},
		{"UPDATE rate_limit_overrides SET user_id = NULL, key_id = 1",
			"override user/ann 1 false\noverride key/" + ann + " false 1"},
		{"UPDATE rate_limit_api_keys SET digest = sha256('x') WHERE id = 1",
			"key " + ann + " true false\nkey " + x + " false true"},
		{"INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')",
			"ban network/192.0.2.0/24 false true"},
		{"DELETE FROM rate_limit_bans", "ban network/192.0.2.0/24 true false"},
		{"UPDATE rate_limit_tiers SET tier = 'silver' WHERE tier = 'gold'",
			"tier gold gold false\ntier silver false silver\nuser ann gold silver"},
		{"DELETE FROM rate_limit_rules",
			"rule r shadow false\nlimit r/per_hour 8 false\noverride key/" + x + " 1 false"},
		{"DELETE FROM rate_limit_users WHERE user_id = 'ann'",
			"user ann silver false\nkey " + x + " true false"},
		{"TRUNCATE rate_limit_bans", "ban - false false"},
	} {
		s.exec(step.sql)
		if got := s.lines(); sorted(got) != sorted(step.want) {
			t.Errorf("%s:\n%s\nwant\n%s", step.sql, got, step.want)
		}
	}
}

// A thousand rows are a thousand lines, and a thousand and one are one line about all.
func TestAStatementThatChangesManyRows(t *testing.T) {
	s := newSite(t)
	s.lines()
	const summary = "SELECT kind, count(*), count(ref), count(before), count(after) FROM " +
		"rate_limit_changes GROUP BY kind"
	insert := func(n string) {
		s.exec("INSERT INTO rate_limit_bans (user_id) SELECT i::text FROM generate_series(1, " + n + ") AS i")
	}
	for _, step := range []struct{ rows, inserted, updated, deleted string }{
		{"1000", "ban 1000 1000 0 1000", "ban 1000 1000 1000 1000", "ban 1000 1000 1000 0"},
		{"1001", "ban 1 0 0 0", "ban 1 0 0 0", "ban 1 0 0 0"},
	} {
		insert(step.rows)
		s.want(summary, step.inserted)
		s.lines()
		s.exec("UPDATE rate_limit_bans SET reason = 'x'")
		s.want(summary, step.updated)
		s.lines()
		s.exec("DELETE FROM rate_limit_bans")
		s.want(summary, step.deleted)
		s.lines()
	}
}
