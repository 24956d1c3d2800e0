package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// keys returns the lines with API keys that the demo has printed.
func (d *demo) keys() string {
	return strings.Join(regexp.MustCompile(`(?m)^  (ANN|ACME)=\S+$`).FindAllString(d.output, -1), " ")
}

// A second run creates the rules and users that were deleted, with new keys, and changes no other row: a
// rule, a tier, a price and a key that the user has changed stay.
func TestSecondRunAddsOnlyMissingRows(t *testing.T) {
	dsn, state := cluster.Open(t), t.TempDir()
	first := start(t, state, dsn)
	first.interrupt(t)
	cluster.Execute(t, dsn,
		`SELECT rate_limit_rule('free', per_minute => 8, mode => 'shadow'); DELETE FROM rate_limit_rules
			WHERE name = 'pro'`)
	cluster.Execute(t, dsn,
		`UPDATE rate_limit_users SET tier = 'enterprise' WHERE user_id = 'acme'; DELETE FROM rate_limit_users
			WHERE user_id = 'ann'; UPDATE rate_limit_prices SET output = 1`)
	second := start(t, state, dsn)
	second.interrupt(t)
	const policy = `SELECT string_agg(r.name || ' ' || l.events || ' ' || r.mode, ', ' ORDER BY r.name)
		FROM rate_limit_rules r JOIN rate_limit_rule_limits l ON l.rule = r.name`
	check.Equal(t, "the rules",
		cluster.Query[string](t, dsn, policy), "anonymous 2 enforce, budget 10000 enforce, "+
			"enterprise 5000 enforce, free 8 shadow, pro 50 enforce")
	const users = `SELECT string_agg(concat_ws(' ', user_id, tier, parent), ', ' ORDER BY user_id)
		FROM rate_limit_users`
	check.Equal(t, "the users", cluster.Query[string](t, dsn, users), "acme enterprise, ann free acme")
	const money = `SELECT concat_ws(' ', p.output, o.user_id, o.events) FROM rate_limit_prices p,
		rate_limit_overrides o`
	check.Equal(t, "the price and the override", cluster.Query[string](t, dsn, money), "1 acme 50000")
	before, after := strings.Fields(first.keys()), strings.Fields(second.keys())
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("the keys are %q and then %q, want two keys each", before, after)
	}
	if before[0] == after[0] || before[1] != after[1] {
		t.Errorf("the keys are %q and then %q, want another key of ann and the same one of acme",
			before, after)
	}
	if !strings.Contains(second.output, "(its data stay between runs)") {
		t.Errorf("the second run prints\n%s\nwant that its data stay", second.output)
	}
}

// In a database with a rule that the demo did not create, the demo changes no row and prints no keys.
func TestPolicyOfAnotherProgramStays(t *testing.T) {
	dsn := cluster.Open(t)
	start(t, t.TempDir(), dsn).interrupt(t)
	cluster.Execute(t, dsn, "SELECT rate_limit_rule('mine', per_hour => 1)")
	cluster.Execute(t, dsn, "UPDATE rate_limit_users SET tier = 'enterprise'")
	d := start(t, t.TempDir(), dsn)
	const want = "Without a policy to try: the database has rules or users of its own"
	if !strings.Contains(d.output, want) || strings.Contains(d.output, "ANN=") {
		t.Errorf("the demo prints\n%s\nwant %s, and no keys", d.output, want)
	}
	d.interrupt(t)
	if moved := cluster.Query[int](t, dsn,
		"SELECT count(*) FROM rate_limit_users WHERE tier <> 'enterprise'"); moved > 0 {
		t.Errorf("%d users are changed, want none", moved)
	}
}
