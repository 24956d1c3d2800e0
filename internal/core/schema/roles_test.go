package schema_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	counts "github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// roles makes a role of the proxies and one of administrators, with the privileges that
// docs/policy.md gives them.
func (s *site) roles() (proxy, administrator string) {
	s.t.Helper()
	text, err := os.ReadFile("../../../docs/policy.md")
	if err != nil {
		s.t.Fatal(err)
	}
	database := s.text("SELECT current_database()")
	proxy, administrator = "p_"+database, "a_"+database
	s.exec("CREATE ROLE " + proxy + "; CREATE ROLE " + administrator)
	s.t.Cleanup(func() {
		for _, role := range []string{proxy, administrator} {
			s.exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role)
		}
	})
	_, section, _ := strings.Cut(string(text), "\n## Roles\n")
	section, _, _ = strings.Cut(section, "\n## ")
	grants := regexp.MustCompile(`(?m)^GRANT .*;$`).FindAllString(section, -1)
	if len(grants) != 12 {
		s.t.Fatalf("docs/policy.md has %d GRANTs, want 12", len(grants))
	}
	for _, grant := range grants {
		s.exec(strings.NewReplacer(" TO proxy;", " TO "+proxy, " TO administrator;", " TO "+administrator).Replace(grant))
	}
	return proxy, administrator
}

// The roles of docs/policy.md are enough: an administrator changes the policy, and proxies
// obey, count and say how far they are. And they are not too much.
func TestTheRolesOfTheDocumentation(t *testing.T) {
	s := newSite(t)
	s.exec("REVOKE CREATE ON SCHEMA public FROM public")
	proxy, administrator := s.roles()
	db := s.db(proxy)
	var reported []string
	store, err := counts.Open(s.db(proxy), engine.Options{
		CleanupProbability: 1, OnError: func(err error) { t.Error(err) },
	}, &registry.Node{Name: "n1", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.Prepare()
	p, err := policy.New(db, policy.Settings{Refresh: -1, OnApplied: func(seq int64, log string, problems []string) { store.SetApplied(seq, log, problems) }, OnError: func(err error) { reported = append(reported, err.Error()) }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx := context.Background()
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}

	s.exec("SET ROLE " + administrator)
	for _, command := range []string{
		"SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 10)", "INSERT INTO rate_limit_tiers (tier) VALUES ('gold')",
		"INSERT INTO rate_limit_users (user_id, tier) VALUES ('eve', 'gold')", "UPDATE rate_limit_users SET tier = 'pro' WHERE user_id = 'eve'",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('eve'), 'eve')",
		"INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_hour', 'ann', 5)",
		"INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')", "DELETE FROM rate_limit_bans",
		"SELECT * FROM rate_limit_near, rate_limit_banned, rate_limit_nodes, rate_limit_changes", "SELECT * FROM rate_limit_tier_states, rate_limit_key_states, rate_limit_changed, rate_limit_proxies, rate_limit_rule_states, rate_limit_limit_states, rate_limit_overridden",
		"SELECT * FROM rate_limit_user_states u, rate_limit_recent(u.user_id)", "SELECT rate_limit_revoke_key(max(id)) FROM rate_limit_api_keys",
		"SELECT rate_limit_rotate_key(min(id), '1 h', sha256('new')) FROM rate_limit_api_keys",
		"DELETE FROM rate_limit_users WHERE user_id = 'eve'", "UPDATE rate_limit_tiers SET tier = 'silver' WHERE tier = 'gold'", "SELECT rate_limit_delete_tier('silver')",
		"INSERT INTO rate_limit_bans (user_id) VALUES ('eve')", "DELETE FROM rate_limit_bans",
		"SELECT * FROM rate_limit_metrics",
		"SELECT * FROM rate_limit_audited, rate_limit_minutes, rate_limit_top(now()), rate_limit_usage_between('ann', now()::date, now()::date)",
	} {
		s.exec(command)
	}
	for _, forbidden := range []string{
		"INSERT INTO rate_limit_changes (kind, by) VALUES ('user', 'somebody else')", "DELETE FROM rate_limit_changes", "UPDATE rate_limit_changes SET by = 'somebody else'",
		"TRUNCATE rate_limit_users", "SELECT rate_limit_forget()", "SELECT rate_limit_forget_person('ann')", "CREATE TABLE x ()", "DROP TABLE rate_limit_bans", "ALTER TABLE rate_limit_rules DISABLE TRIGGER ALL", "SET session_replication_role = replica",
		"UPDATE rate_limit_ephemeral SET count = 0", "INSERT INTO rate_limit_durable (prefix, key) VALUES ('p', 'k')", "DELETE FROM rate_limit_audit", "UPDATE rate_limit_usage SET cost = 0", "DELETE FROM rate_limit_metrics",
		"UPDATE rate_limit_nodes SET node = 'x'",
	} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("an administrator, %s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE")
	s.want("SELECT count(DISTINCT by), max(by) FROM rate_limit_changes WHERE seq > (SELECT min(seq) FROM rate_limit_changes WHERE kind = 'rule')", "1 "+administrator)

	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	facts := policy.Facts{Tier: "anonymous", Path: "/", Method: "GET"}
	var o policy.Verdict
	if err := p.Evaluate(ctx, time.Minute, "ann", "", &facts, &o); err != nil || len(o.Hits) != 1 || o.Hits[0].Limit.Events != 5 {
		t.Fatalf("%v, %+v", err, o)
	}
	if err := store.Take(ctx, time.Minute, o.Hits, make([]ratelimit.Decision, 1)); err != nil {
		t.Error(err)
	}
	s.exec("SET ROLE " + proxy)
	for _, command := range []string{
		"SELECT rate_limit_forget()", "SELECT digest FROM rate_limit_api_keys", "UPDATE rate_limit_ephemeral SET count = 1", "DELETE FROM rate_limit_durable",
	} {
		s.exec(command)
	}
	for _, forbidden := range []string{
		"INSERT INTO rate_limit_bans (user_id) VALUES ('bob')", "UPDATE rate_limit_bans SET until = now()", "DELETE FROM rate_limit_bans", "SELECT rate_limit_rule('plan', per_hour => 1000000)",
		"SELECT after FROM rate_limit_changes", "DELETE FROM rate_limit_changes", "UPDATE rate_limit_users SET tier = 'pro'", "INSERT INTO rate_limit_rules (name) VALUES ('x')",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('x'), 'ann')", "DELETE FROM rate_limit_overrides", "UPDATE rate_limit_tiers SET rank = 0",
		"INSERT INTO rate_limit_changes (kind, by) VALUES ('user', 'x')", "SELECT by FROM rate_limit_changes", "SELECT FROM rate_limit_audit", "SELECT FROM rate_limit_usage", "SELECT FROM rate_limit_metrics",
		"SELECT FROM rate_limit_audited", "SELECT FROM rate_limit_minutes", "SELECT rate_limit_top(now())", "SELECT rate_limit_usage_between('ann', now()::date, now()::date)", "TRUNCATE rate_limit_ephemeral",
		"UPDATE rate_limit_rules SET name = 'x'", "SELECT rate_limit_delete_tier('pro')", "SELECT rate_limit_revoke_key(1)", "SELECT rate_limit_rotate_key(1, '1 h', sha256('x'))", "SELECT rate_limit_recent('ann')",
		"SELECT rate_limit_forget_person('ann')",
		"SELECT FROM rate_limit_changed", "SELECT FROM rate_limit_user_states", "CREATE TABLE x ()", "SET session_replication_role = replica",
	} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("a proxy, %s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE")
	const rowSQL = "SELECT concat(node, ' ', epoch, ' ', applied_seq = (SELECT max(seq) FROM rate_limit_changes)) FROM rate_limit_nodes"
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the registry to have n1 1 t", func() bool { return s.text(rowSQL) == "n1 1 t" })
	store.Close()
	s.want("SELECT count(*) FROM rate_limit_nodes WHERE ended IS NULL", "0")
	if len(reported) > 0 {
		t.Errorf("reported: %q", reported)
	}
}

// A function that writes with the rights of its owner does not fall for a caller's tables.
func TestACallerCannotPutTablesOfItsOwnInPlace(t *testing.T) {
	s := newSite(t)
	_, administrator := s.roles()
	s.exec("SET ROLE " + administrator)
	s.exec(`CREATE TEMPORARY TABLE rate_limit_changes (kind text, ref text, by text, before jsonb, after jsonb);
		INSERT INTO public.rate_limit_tiers (tier) VALUES ('gold')`)
	s.exec("RESET ROLE")
	s.want("SELECT (SELECT count(*) FROM pg_temp.rate_limit_changes), (SELECT count(*) FROM public.rate_limit_changes WHERE ref = 'gold')", "0 1")
}
