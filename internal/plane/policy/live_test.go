package policy_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A change of any kind is obeyed with the next poll.
func TestChangesAreObeyed(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.user("ann", "free")
			s.exec("SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000)")
			db := open(t, s.dsn)
			applied := int64(0)
			p := s.policyOn(db, policy.Settings{OnApplied: func(seq int64, _ string, _ []string) { applied = seq }})
			refresh(t, p)
			same(t, "at first", decided(t, p, "key of ann", ""), "ann free rule/plan/per_hour=1000")
			same(t, "the same user without a key", decided(t, p, "", "ann"), "ann free rule/plan/per_hour=1000")
			same(t, "an unknown key", decided(t, p, "no key", ""), " anonymous 401 unknown_key")
			same(t, "an unknown user", decided(t, p, "", "eve"), "eve anonymous")
			for _, step := range []struct{ sql, key, user string }{
				{"SELECT rate_limit_rule('plan', per_hour => 500)", "ann free rule/plan/per_hour=500", "ann free rule/plan/per_hour=500"},
				{"INSERT INTO rate_limit_overrides (rule, limit_name, tier, events) VALUES ('plan', 'per_hour', 'free', 400)", "ann free rule/plan/per_hour=400", "ann free rule/plan/per_hour=400"},
				{"INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_hour', 'ann', 300)", "ann free rule/plan/per_hour=300", "ann free rule/plan/per_hour=300"},
				{"INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events) SELECT 'plan', 'per_hour', id, 200 FROM rate_limit_api_keys", "ann free rule/plan/per_hour=200", "ann free rule/plan/per_hour=300"},
				{"DELETE FROM rate_limit_overrides WHERE key_id IS NOT NULL", "ann free rule/plan/per_hour=300", "ann free rule/plan/per_hour=300"},
				{"TRUNCATE rate_limit_overrides", "ann free rule/plan/per_hour=500", "ann free rule/plan/per_hour=500"},
				{"INSERT INTO rate_limit_bans (user_id) VALUES ('ann')", "ann free 403 banned", "ann free 403 banned"},
				{"DELETE FROM rate_limit_bans", "ann free rule/plan/per_hour=500", "ann free rule/plan/per_hour=500"},
				{"INSERT INTO rate_limit_bans (key_id) SELECT id FROM rate_limit_api_keys", "ann free 403 banned", "ann free rule/plan/per_hour=500"},
				{"UPDATE rate_limit_bans SET until = now()", "ann free rule/plan/per_hour=500", "ann free rule/plan/per_hour=500"},
				{"UPDATE rate_limit_rules SET mode = 'off'", "ann free", "ann free"},
				{"UPDATE rate_limit_rules SET mode = 'enforce'", "ann free rule/plan/per_hour=500", "ann free rule/plan/per_hour=500"},
				{"UPDATE rate_limit_rules SET name = 'plans'", "ann free rule/plans/per_hour=500", "ann free rule/plans/per_hour=500"},
				{"SELECT rate_limit_rule('plan', per_hour => 7)", "ann free rule/plan/per_hour=7 rule/plans/per_hour=500", "ann free rule/plan/per_hour=7 rule/plans/per_hour=500"},
				{"DELETE FROM rate_limit_rules WHERE name = 'plan'", "ann free rule/plans/per_hour=500", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_users SET tier = 'pro'", "ann pro", "ann pro"},
				{"UPDATE rate_limit_users SET tier = 'free', tier_until = now()", "ann anonymous", "ann anonymous"},
				{"UPDATE rate_limit_users SET tier_until = 'infinity'", "ann free rule/plans/per_hour=500", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_api_keys SET revoked_at = '-infinity'", " anonymous 401 key_revoked", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_api_keys SET revoked_at = NULL, expires_at = now()", " anonymous 401 key_expired", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_api_keys SET expires_at = 'infinity', digest = sha256('no key')", " anonymous 401 unknown_key", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_api_keys SET digest = sha256('key of ann')", "ann free rule/plans/per_hour=500", "ann free rule/plans/per_hour=500"},
				{"UPDATE rate_limit_users SET user_id = 'bob'", "bob free rule/plans/per_hour=500", "ann anonymous"},
				{"UPDATE rate_limit_tiers SET tier = 'gratis' WHERE tier = 'free'", "bob gratis rule/plans/per_hour=500", "ann anonymous"},
				{"TRUNCATE rate_limit_users CASCADE", " anonymous 401 unknown_key", "ann anonymous"},
			} {
				s.exec(step.sql)
				refresh(t, p)
				same(t, "the key after "+step.sql, decided(t, p, "key of ann", ""), step.key)
				same(t, "the user after "+step.sql, decided(t, p, "", "ann"), step.user)
			}
			same(t, "what was reported", s.reports(), "")
			if want := s.number("SELECT max(seq) FROM rate_limit_changes"); applied != want {
				t.Errorf("%d is applied, want %d", applied, want)
			}
		})
	}
}

// All fields of a rule and its limits arrive as they are in the database.
func TestRulesArriveWhole(t *testing.T) {
	s := newSite(t)
	s.exec("UPDATE rate_limit_tiers SET comment = 'x'")
	s.exec(`SELECT rate_limit_rule('r', family => 'f', priority => 7, hosts => '{api.example.com}', paths => '{/}', methods => '{GET}', tiers => '{anonymous}', networks => '{192.0.2.0/24,2001:db8::/32}',
		count_by => '{host}', cost => 3, status => 402, message => 'pay "now"', retry_after => '90 s', valid => '[2020-01-01,2999-01-01)', algorithm => 'gcra', per_second => 10, burst => 4, durable => true)`)
	p := s.policy(policy.Settings{})
	refresh(t, p)
	facts := policy.Facts{Tier: "anonymous", Method: "GET", Host: "api.example.com", Path: "/", Address: netip.MustParseAddr("2001:db8::1")}
	var o policy.Verdict
	if err := p.Evaluate(context.Background(), longTime, "", "", &facts, &o); err != nil || len(o.Hits) != 1 {
		t.Fatalf("%v, %+v", err, o)
	}
	hit, mark := o.Hits[0], o.Marks[0]
	limit := *hit.Limit
	want := ratelimit.Limit{Prefix: "rule/r/per_second", Algorithm: ratelimit.GCRA, Events: 10, Window: time.Second, Burst: 4, Durable: true}
	if limit != want || hit.Cost != 3 || hit.Key != "api.example.com" {
		t.Errorf("the hit is %+v on %+v, want %+v", hit, limit, want)
	}
	if mark.Status != 402 || mark.Message != `pay "now"` || mark.RetryAfter != 90*time.Second || mark.From != "rule" {
		t.Errorf("the mark is %+v", mark)
	}
	s.exec("UPDATE rate_limit_rules SET valid = '(,2020-01-01)'")
	refresh(t, p)
	same(t, "afterwards", decided(t, p, "", ""), " anonymous")
}
