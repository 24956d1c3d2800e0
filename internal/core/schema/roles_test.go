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
	grants := regexp.MustCompile(`(?m)^GRANT [^;]*;$`).FindAllString(section, -1)
	if len(grants) != 13 {
		s.t.Fatalf("docs/policy.md has %d GRANTs, want 13", len(grants))
	}
	for _, grant := range grants {
		s.exec(strings.NewReplacer(" TO proxy;", " TO "+proxy, " TO administrator;",
			" TO "+administrator).Replace(grant))
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
	p := policy.New(db,
		policy.Settings{Refresh: -1,
			OnApplied: func(seq int64, log string,
				problems []string) {
				store.SetApplied(seq, log, problems)
			}, OnError: func(
				err error) {
				reported = append(reported, err.Error())
			}})
	defer p.Close()
	ctx := context.Background()
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}

	s.exec("SET ROLE " + administrator)
	for _, command := range []string{
		"SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 10)",
		"INSERT INTO rate_limit_tiers (tier) VALUES ('gold')",
		"INSERT INTO rate_limit_users (user_id, tier) VALUES ('eve', 'gold')", "UPDATE rate_limit_users " +
			"SET tier = 'pro' WHERE user_id = 'eve'",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('eve'), 'eve')",
		"INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', " +
			"'per_hour', 'ann', 5)",
		"INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')", "DELETE FROM rate_limit_bans",
		"SELECT * FROM rate_limit_near, rate_limit_banned, rate_limit_nodes, rate_limit_changes",
		"SELECT * FROM rate_limit_tier_states, rate_limit_key_states, rate_limit_changed, " +
			"rate_limit_proxies, rate_limit_rule_states, rate_limit_overridden",
		"SELECT * FROM rate_limit_user_states u, rate_limit_recent(u.user_id)",
		"SELECT rate_limit_revoke_key(max(id)) FROM rate_limit_api_keys",
		`SELECT rate_limit_apply('{"tiers": [{"tier": "gold", "rank": 7}]}')`,
		"SELECT rate_limit_apply(rate_limit_policy(true), true)",
		"SELECT rate_limit_rotate_key(min(id), '1 h', sha256('new')) FROM rate_limit_api_keys",
		"SELECT rate_limit_tier('bronze', rank => 3)", "SELECT rate_limit_user('zoe', tier => 'bronze')",
		"SELECT rate_limit_key(max(id), tier => 'gold', reset => '{revoked_at}') FROM rate_limit_api_keys",
		"SELECT rate_limit_limit('plan', 'burst', '5/10s')",
		"SELECT rate_limit_override('plan', 'burst', '50', user_id => 'zoe')",
		"SELECT rate_limit_delete_override('plan', 'burst', user_id => 'zoe')",
		"SELECT rate_limit_reset('web', 'x')", "SELECT rate_limit_used_by('ann')",
		"SELECT rate_limit_rename('rule', 'gone', 'other')",
		"SELECT rate_limit_ban(user_id => 'zoe')", "SELECT rate_limit_unban(user_id => 'zoe')",
		"SELECT rate_limit_delete_limit('plan', 'burst')", "SELECT rate_limit_delete_user('zoe')",
		"SELECT rate_limit_rule('gone', " +
			"per_hour => 1)", "SELECT rate_limit_delete_rule('gone')", "UPDATE rate_limit_api_keys " +
			"SET tier = NULL",
		"DELETE FROM rate_limit_users WHERE user_id = 'eve'", "UPDATE rate_limit_tiers SET tier = 'silver' " +
			"WHERE tier = 'gold'", "SELECT rate_limit_delete_tier('silver')",
		"INSERT INTO rate_limit_bans (user_id) VALUES ('eve')", "DELETE FROM rate_limit_bans",
		"SELECT * FROM rate_limit_metrics", "UPDATE rate_limit_retention SET keep = '80 days' WHERE " +
			"what = 'audit'",
		"SELECT * FROM rate_limit_audited, rate_limit_minutes, rate_limit_top(now()), " +
			"rate_limit_why($$x$$), rate_limit_state, " +
			"rate_limit_usage_between('ann', now()::date, now()::date)",
	} {
		s.exec(command)
	}
	for _, forbidden := range []string{
		"INSERT INTO rate_limit_changes (kind, by) VALUES ('user', 'somebody else')", "DELETE FROM " +
			"rate_limit_changes", "UPDATE rate_limit_changes SET by = 'somebody else'",
		"TRUNCATE rate_limit_users", "SELECT rate_limit_forget()", "SELECT rate_limit_forget_person('ann')",
		"CREATE TABLE x ()", "DROP TABLE rate_limit_bans", "ALTER TABLE rate_limit_rules DISABLE " +
			"TRIGGER ALL", "SET session_replication_role = replica",
		"UPDATE rate_limit_ephemeral SET count = 0", "INSERT INTO rate_limit_durable (prefix, key) VALUES " +
			"('p', 'k')", "DELETE FROM rate_limit_audit", "UPDATE rate_limit_metrics SET settled = 0", "DELETE FROM " +
			"rate_limit_metrics", "UPDATE rate_limit_retention SET upkeep_at = now()",
		"UPDATE rate_limit_nodes SET node = 'x'",
	} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("an administrator, %s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE")
	s.want("SELECT count(DISTINCT by), max(by) FROM rate_limit_changes WHERE seq > (SELECT min(seq) FROM "+
		"rate_limit_changes WHERE kind = 'rule')", "1 "+administrator)

	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	facts := policy.Facts{Tier: "anonymous", Path: "/", Method: "GET"}
	var o policy.Verdict
	if err := p.Evaluate(ctx, time.Minute, "ann", "", &facts, &o); err != nil || len(o.Hits) != 1 ||
		o.Hits[0].Limit.Events != 5 {
		t.Fatalf("%v, %+v", err, o)
	}
	if err := store.Take(ctx, time.Minute, o.Hits, make([]ratelimit.Decision, 1)); err != nil {
		t.Error(err)
	}
	s.exec("SET ROLE " + proxy)
	for _, command := range []string{
		"SELECT rate_limit_forget()", "SELECT digest FROM " +
			"rate_limit_api_keys", "UPDATE rate_limit_ephemeral SET count = 1", "DELETE FROM rate_limit_durable",
	} {
		s.exec(command)
	}
	for _, forbidden := range []string{
		"INSERT INTO rate_limit_bans (user_id) VALUES ('bob')", "UPDATE rate_limit_bans SET until = now()",
		"DELETE FROM rate_limit_bans", "SELECT rate_limit_rule('plan', per_hour => 1000000)",
		"SELECT after FROM rate_limit_changes", "DELETE FROM rate_limit_changes", "UPDATE rate_limit_users " +
			"SET tier = 'pro'", "INSERT INTO rate_limit_rules (name) VALUES ('x')",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('x'), 'ann')", "DELETE FROM " +
			"rate_limit_overrides", "UPDATE rate_limit_tiers SET rank = 0",
		"INSERT INTO rate_limit_changes (kind, by) VALUES ('user', 'x')", "SELECT by FROM rate_limit_changes",
		"SELECT FROM rate_limit_audit", "SELECT FROM rate_limit_metrics", "SELECT FROM rate_limit_metrics_day",
		"SELECT FROM rate_limit_audited", "SELECT FROM rate_limit_minutes", "SELECT rate_limit_top(now())",
		"SELECT rate_limit_usage_between('ann', now()::date, now()::date)", "TRUNCATE rate_limit_ephemeral",
		"UPDATE rate_limit_rules SET name = 'x'", "SELECT rate_limit_delete_tier('pro')",
		"SELECT rate_limit_revoke_key(1)", "SELECT rate_limit_rotate_key(1, '1 h', sha256('x'))",
		"SELECT rate_limit_recent('ann')",
		"SELECT rate_limit_policy()", `SELECT rate_limit_apply('{}')`,
		"SELECT rate_limit_policy_rows('keys')", "SELECT rate_limit_policy_lists('{}')",
		"SELECT rate_limit_policy_write('rules', 'delete', '[]')",
		"SELECT rate_limit_set('rate_limit_tiers', '{tier}', '{}', NULL)", "SELECT rate_limit_tier('free')",
		"SELECT rate_limit_user('ann')", "SELECT rate_limit_key(1)",
		"SELECT rate_limit_limit('plan', 'x', '1/1s')",
		"SELECT rate_limit_override('plan', 'per_hour', '1')", "SELECT rate_limit_ban(user_id => 'ann')",
		"SELECT rate_limit_unban(user_id => 'ann')", "SELECT rate_limit_delete_rule('plan')",
		"SELECT rate_limit_delete_limit('plan', 'per_hour')", "SELECT rate_limit_delete_user('ann')",
		"SELECT rate_limit_delete_override('plan', 'per_hour')",
		"SELECT rate_limit_forget_person('ann')",
		"SELECT FROM rate_limit_changed", "SELECT FROM " +
			"rate_limit_user_states", "CREATE TABLE x ()", "SET session_replication_role = replica",
	} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("a proxy, %s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE")
	const rowSQL = "SELECT concat(node, ' ', epoch, ' ', applied_seq = (SELECT max(seq) FROM " +
		"rate_limit_changes)) FROM rate_limit_nodes"
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the registry to have n1 1 t",
		func() bool { return s.text(rowSQL) == "n1 1 t" })
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
	s.want("SELECT (SELECT count(*) FROM pg_temp.rate_limit_changes), (SELECT count(*) FROM "+
		"public.rate_limit_changes WHERE ref = 'gold')", "0 1")
}

// docs/security.md has each function with the rights of the owner, who may call it, and no role
// destroys or makes more than it says there.
func TestWhatEachRoleMayCall(t *testing.T) {
	s := newSite(t)
	s.exec("REVOKE CREATE ON SCHEMA public FROM public")
	proxy, administrator := s.roles()
	operating, err := os.ReadFile("../../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	security, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	grant := regexp.MustCompile(`GRANT EXECUTE ON FUNCTION rate_limit_begin_batch[^;]* TO `).FindString(
		string(operating))
	s.exec(grant + proxy)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(rate_limit_[a-z_]+)` \\| (yes|no) \\| "+
		"(yes|no) \\|").FindAllStringSubmatch(string(security), -1) {
		documented = append(documented, row[1]+" "+row[2]+" "+row[3]+" no")
	}
	s.exec("CREATE ROLE n_" + proxy)
	t.Cleanup(func() { s.exec("RESET ROLE; DROP ROLE n_" + proxy) })
	may := func(role string) string {
		return "CASE WHEN has_function_privilege('" + role + "', oid, 'EXECUTE') THEN 'yes' ELSE 'no' END"
	}
	s.want("SELECT proname, "+may(proxy)+", "+may(administrator)+", "+may("n_"+proxy)+" FROM pg_proc WHERE "+
		"prosecdef AND pronamespace = 'public'::regnamespace ORDER BY proname COLLATE \"C\"",
		sorted(strings.Join(documented, "\n")))

	s.exec(`SELECT rate_limit_upkeep(); SELECT rate_limit_make_partition_of(t, (now() AT TIME ZONE 'UTC')::date - d) FROM unnest('{rate_limit_audit,rate_limit_metrics_minute,rate_limit_metrics_hour}'::text[]) t, unnest('{5,40}'::int[]) d;
		INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node, id) SELECT now() - d * interval '1 day', 1, 1, 'limited', 'p', 'n', nextval('rate_limit_audit_id') FROM unnest('{5,40}'::int[]) d;
		INSERT INTO rate_limit_metrics (granularity, time, user_id, requests, last_request) VALUES ('day', date_trunc('day', now(), 'UTC') - interval '40 days', 'ann', 1, now());
		INSERT INTO rate_limit_bans (user_id, until) VALUES ('ann', now() - interval '29 days')`)
	const kept = `SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT sum(settled) FROM rate_limit_metrics), (SELECT count(*) FROM rate_limit_bans), (SELECT count(*) FROM rate_limit_changes),
		(SELECT count(*) FROM rate_limit_partitions_of('rate_limit_audit')), (SELECT count(*) FROM rate_limit_partitions_of('rate_limit_metrics_hour')), (SELECT string_agg(what || ' ' || keep, ', ' ORDER BY what) FROM rate_limit_retention)`
	before := s.text(kept)
	day := "(extract(epoch FROM now() + interval '1000 days') / 86400)::bigint"
	for _, attempt := range []struct{ roles, sql, fails string }{
		{proxy, "SELECT rate_limit_retain(what, '1 day', 'x') FROM " +
			"unnest('{audit,metrics_minute,metrics_hour,metrics_day}'::text[]) what", ""},
		{proxy, "SELECT rate_limit_retain('metrics_day', '2521 days', 'x')", ""}, // 7 years are 2557 days
		{proxy + " " + administrator, "SELECT rate_limit_upkeep('9999-01-01')", ""},
		{proxy + " " + administrator, "SELECT rate_limit_upkeep('1999-01-01')", ""},
		{proxy + " " + administrator, "SELECT rate_limit_drop_expired('9999-01-01')", ""},
		{proxy + " " + administrator, "SELECT rate_limit_expired('9999-01-01')", ""},
		{proxy, "SELECT rate_limit_forget()", ""},
		{proxy, `SELECT rate_limit_record_audit(node => 'n', region => '', "time" => ARRAY[` + day +
			` * 86400000000], cost => '{1}', count => '{1}', quota => '{-1}', remaining => '{-1}', key_id => '{-1}',
			retry_after_ms => '{-1}', duration_us => '{1}', weight => '{1}', status => '{-1}',
			decision => '{limited}', reason => '{""}', prefix => '{p}', limit_name => '{""}', key => '{""}',
			user_id => '{""}', tier => '{""}', address => '{""}', host => '{""}', method => '{""}',
			path => '{""}', also => '{""}')`, "within 8 days of today"},
		{proxy, recordSQL("", "2126-01-01Z", nil), "within 8 days of today"},
		{proxy, recordSQL("", "2026-01-01Z", map[string]string{"settled": "-1"}), "below 0"},
		{proxy, recordSQL("", "2026-01-01Z", map[string]string{"latency": "{-1}"}), "below 0"},
		{proxy + " " + administrator, "SELECT rate_limit_make_partition('2020-01-01')", "permission denied"},
		{administrator, "SELECT rate_limit_retain('audit', '1 day', 'x')", "permission denied"},
	} {
		for _, role := range strings.Fields(attempt.roles) {
			s.exec("SET ROLE " + role)
			err := s.try(attempt.sql)
			s.exec("RESET ROLE")
			if failed := err != nil; failed != (attempt.fails != "") ||
				failed && !strings.Contains(err.Error(), attempt.fails) {
				t.Errorf("%s, %s: %v, want %q", role, attempt.sql, err, attempt.fails)
			}
			if after := s.text(kept); after != before {
				t.Errorf("%s, %s:\n%s\nbefore\n%s", role, attempt.sql, after, before)
			}
		}
	}
	// A longer retention, and a shorter one by an administrator who may read what becomes of it.
	s.exec("SET ROLE " + proxy + "; SELECT rate_limit_retain('audit', '91 days', 'n1'); RESET ROLE")
	s.want("SELECT keep, set_by FROM rate_limit_retention WHERE what = 'audit'", "91 days n1")
	s.exec("SET ROLE " + administrator + "; UPDATE rate_limit_retention SET keep = '30 days', set_by = " +
		"'me' WHERE what = 'audit'; SELECT rate_limit_drop_expired(); RESET ROLE")
	s.want("SELECT count(*) FROM rate_limit_audit", "1")
}
