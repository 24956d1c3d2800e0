package schema_test

import (
	"strings"
	"testing"
)

// A user that is renamed stays banned, and a tier that is renamed keeps its limits. Proxies learn
// of both from the log of changes.
func TestRenamesCascade(t *testing.T) {
	s := newSite(t)
	s.exec(`SELECT rate_limit_rule('plan', tiers => '{free,pro}', per_hour => 10); SELECT rate_limit_rule('other', tiers => '{pro}', per_hour => 10);
		INSERT INTO rate_limit_bans (user_id, until, reason) VALUES ('ann', 'infinity', 'fraud'), ('short', now() + interval '1 h', 'x'), ('bob', now() + interval '1 h', 'y'), ('long', now() + interval '2 h', 'z')`)
	const news = "SELECT kind, ref FROM rate_limit_changes WHERE xid = (SELECT max(xid::text::bigint) FROM " +
		"rate_limit_changes)::text::xid8 ORDER BY kind, ref"
	s.exec("UPDATE rate_limit_users SET user_id = 'anna' WHERE user_id = 'ann'")
	s.want("SELECT user_id, until, reason FROM rate_limit_bans WHERE user_id LIKE 'an%'",
		"anna infinity fraud")
	if got := s.text(news); !strings.Contains(got, "ban user/ann\nban user/anna") ||
		!strings.Contains(got, "user ann\nuser anna") {
		t.Errorf("the log says\n%s", got)
	}
	// The new name has a ban of its own: the one that ends later stays.
	s.exec("UPDATE rate_limit_users SET user_id = 'short' WHERE user_id = 'anna'; UPDATE rate_limit_users " +
		"SET user_id = 'long' WHERE user_id = 'bob'")
	s.want("SELECT user_id, reason FROM rate_limit_bans ORDER BY user_id", "long z\nshort fraud")

	s.exec("UPDATE rate_limit_tiers SET tier = 'gratis' WHERE tier = 'free'")
	s.want("SELECT name, tiers FROM rate_limit_rules ORDER BY name", "other {pro}\nplan {gratis,pro}")
	if got := s.text(news); !strings.Contains(got, "rule plan") || !strings.Contains(got, "tier gratis") ||
		strings.Contains(got, "rule other") {
		t.Errorf("the log says\n%s", got)
	}
	if failure := s.fails("UPDATE rate_limit_tiers SET tier = 'guests' WHERE tier = " +
		"'anonymous'"); !strings.Contains(failure.Message, "must keep its name") {
		t.Error(failure)
	}
}

// A role that may change users alone renames a banned one.
func TestARoleForUsersAloneRenamesThem(t *testing.T) {
	s := newSite(t)
	role := "u_" + s.text("SELECT current_database()")
	s.exec("CREATE ROLE " + role + "; GRANT SELECT, UPDATE ON rate_limit_users TO " + role +
		"; INSERT INTO rate_limit_bans (user_id) VALUES ('ann')")
	t.Cleanup(func() { s.exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role) })
	s.exec("SET ROLE " + role + "; UPDATE rate_limit_users SET user_id = 'anna' WHERE user_id = " +
		"'ann'; RESET ROLE")
	s.want("SELECT user_id FROM rate_limit_bans", "anna")
}
