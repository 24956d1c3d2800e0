package policy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// unchecked runs SQL on rules as a server would that does not check them.
func (s *site) unchecked(sql string) {
	s.t.Helper()
	const trust = "ALTER TABLE rate_limit_rules DISABLE TRIGGER rate_limit_usable, DISABLE TRIGGER rate_limit_complete; ALTER TABLE rate_limit_rule_limits DISABLE TRIGGER rate_limit_complete; "
	s.exec(trust + sql + "; " + strings.ReplaceAll(trust, "DISABLE", "ENABLE"))
}

// A rule that can no longer be used applies as it was when it could, until the proxy ends. Other rules
// follow their changes. The log, the node and the count name it.
func TestARuleThatCanNoLongerBeUsedStaysAsItWas(t *testing.T) {
	s := newSite(t)
	s.exec(`SELECT rate_limit_rule('closed', action => 'block', paths => '{/admin}'); SELECT rate_limit_rule('plan', count_by => '{all}', per_hour => 5)`)
	var problems []string
	settings := policy.Settings{OnApplied: func(_ int64, _ string, now []string) { problems = now }}
	p := s.policy(settings)
	at := func(p *policy.Policy, path string) string {
		t.Helper()
		facts := policy.Facts{Tier: "anonymous", Method: "GET", Path: path}
		var o policy.Verdict
		if err := p.Evaluate(context.Background(), longTime, "", "", &facts, &o); err != nil {
			t.Fatal(err)
		}
		return outcomeText(&o)
	}
	refresh(t, p)
	blocked, open := at(p, "/admin"), at(p, "/")
	same(t, "a request", open, " anonymous rule/plan/per_hour=5")

	s.unchecked("UPDATE rate_limit_rules SET paths = '{/admin,/a%20b}' WHERE name = 'closed'; DELETE FROM rate_limit_rule_limits")
	s.after(2 * time.Second)
	refresh(t, p)
	same(t, "a blocked request", at(p, "/admin"), blocked)
	same(t, "a limited request", at(p, "/"), open)
	const path = `rule closed: paths: "/a%20b": must be a path such as /login, /u/*/files or /api/*, where * is a whole segment, without empty or dot segments, and not percent-encoded (it stays as it was)`
	const limit = "rule plan: limits: missing: must be at least one limit, or another action (it stays as it was)"
	same(t, "what was reported", s.reports(), "cannot be used: "+path+"; "+limit)
	same(t, "what the proxy lacks", strings.Join(problems, "|"), path+"|"+limit)
	if stats := p.Stats(); stats.Rules != 2 || stats.Wrong != 2 {
		t.Errorf("%+v, want 2 rules, of which 2 are wrong", stats)
	}

	// Another change, and a ban, leave it so.
	s.exec("SELECT rate_limit_rule('more', count_by => '{all}', per_day => 7); INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')")
	refresh(t, p)
	same(t, "a blocked request after another change", at(p, "/admin"), blocked)
	same(t, "a limited request after another change", at(p, "/"), " anonymous rule/more/per_day=7 rule/plan/per_hour=5")

	// A policy that starts has no rule of that name in force.
	fresh := s.policy(settings)
	refresh(t, fresh)
	same(t, "a request to a fresh policy", at(fresh, "/admin"), " anonymous rule/more/per_day=7")

	s.exec("UPDATE rate_limit_rules SET paths = '{/private}' WHERE name = 'closed'; DELETE FROM rate_limit_rules WHERE name = 'plan'")
	refresh(t, p)
	same(t, "the path from before", at(p, "/admin"), " anonymous rule/more/per_day=7")
	same(t, "the new path", at(p, "/private"), blocked)
	if stats := p.Stats(); stats.Wrong != 0 {
		t.Errorf("%+v, want no wrong rule", stats)
	}
}

// A user and a tier that are renamed keep the ban and the limits with the next poll.
func TestRenamesAreObeyed(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	s.user("bob", "free")
	s.exec("SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 5); INSERT INTO rate_limit_bans (user_id) VALUES ('ann')")
	p := s.policy(policy.Settings{})
	refresh(t, p)
	same(t, "the banned user", decided(t, p, "key of ann", ""), "ann anonymous 403 banned")
	same(t, "the other user", decided(t, p, "", "bob"), "bob free rule/plan/per_hour=5")
	s.exec("UPDATE rate_limit_users SET user_id = 'anna' WHERE user_id = 'ann'")
	refresh(t, p)
	same(t, "the key of the banned user", decided(t, p, "key of ann", ""), "anna anonymous 403 banned")
	same(t, "the banned user by its new name", decided(t, p, "", "anna"), "anna anonymous 403 banned")
	s.exec("UPDATE rate_limit_tiers SET tier = 'gratis' WHERE tier = 'free'")
	refresh(t, p)
	same(t, "the user of the renamed tier", decided(t, p, "", "bob"), "bob gratis rule/plan/per_hour=5")
}
