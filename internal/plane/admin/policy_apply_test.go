package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

const twoPlans = `tiers:
  - {tier: free, rank: 1}
  - {tier: pro, rank: 2}
rules:
  - name: free
    family: plan
    priority: 700
    tiers: [free]
    limits:
      - {name: per_hour, events: 1000, per: 1h, algorithm: token_bucket, burst: 20}
      - {name: per_month, events: unlimited, calendar: month, algorithm: fixed_window}
  - name: pro
    family: plan
    priority: 600
    tiers: [pro]
    limits:
      - {name: per_hour, events: 5000, per: 60m}
overrides:
  - {rule: free, limit: per_hour, tier: pro, events: 1500, burst: 30, valid: 2026-11-27T01:00:00+01:00..}
`

// want are the changes that a file makes.
func (b *policyBench) changes(file string, o admin.PolicyOptions, want ...string) {
	b.Helper()
	changes, err := b.apply(file, o)
	if got := texts(changes); err != nil || !slices.Equal(got, want) {
		b.Errorf("the changes are\n%s\nwant\n%s\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), err)
	}
}

func TestApplyMakesThePolicyThatOfTheFile(t *testing.T) {
	b := newPolicyBench(t)
	b.changes(twoPlans, admin.PolicyOptions{},
		"tier free created rank: 1", "tier pro created rank: 2",
		"rule free created family: plan, priority: 700, tiers: [free]", "rule pro created family: plan, priority: 600, tiers: [pro]",
		"limit free/per_hour created events: 1000, per: 1h, algorithm: token_bucket, burst: 20", "limit free/per_month created events: unlimited, calendar: month, algorithm: fixed_window",
		"limit pro/per_hour created events: 5000, per: 1h", "override free/per_hour for tier pro 2026-11-27T00:00:00Z.. created events: 1500, burst: 30")
	b.changes(twoPlans, admin.PolicyOptions{Prune: true})

	// Two rules of a family change places, and a limit and its override become another algorithm, which
	// neither could alone.
	b.sql("CREATE TABLE made AS SELECT name, created_at FROM rate_limit_rules")
	other := strings.NewReplacer("priority: 700", "priority: 600", "priority: 600", "priority: 700", "algorithm: token_bucket, burst: 20", "algorithm: sliding_window",
		"burst: 30, ", "", "  - {tier: pro, rank: 2}\n", "  - {tier: pro, rank: 2}\n  - {tier: anonymous, comment: nobody}\n").Replace(twoPlans)
	back := strings.Replace(twoPlans, "overrides", "  - name: spare\n    mode: off\noverrides", 1)
	b.changes(other, admin.PolicyOptions{}, "tier anonymous changed rank: -1 → 0, comment: requests with neither an API key nor a user → nobody",
		"rule free changed priority: 700 → 600", "rule pro changed priority: 600 → 700",
		"limit free/per_hour changed algorithm: token_bucket → sliding_window, burst: 20 → none", "override free/per_hour for tier pro 2026-11-27T00:00:00Z.. changed burst: 30 → none")
	b.changes(back, admin.PolicyOptions{}, "rule free changed priority: 600 → 700", "rule pro changed priority: 700 → 600", "rule spare created mode: off",
		"limit free/per_hour changed algorithm: sliding_window → token_bucket, burst: none → 20", "override free/per_hour for tier pro 2026-11-27T00:00:00Z.. changed burst: none → 30")
	if got := b.text("SELECT count(*)::text FROM made JOIN rate_limit_rules USING (name, created_at)"); got != "2" {
		t.Errorf("%s rules are still the rows that they were, want 2", got)
	}

	// What the file does not name stays, unless it is pruned, and of sections that it has.
	b.sql("INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'pro'); INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('free', 'per_hour', 'ann', 7), ('pro', 'per_hour', 'ann', 8)")
	onlyPro := twoPlans[strings.Index(twoPlans, "  - name: pro"):strings.Index(twoPlans, "overrides")]
	b.changes("rules:\n"+onlyPro, admin.PolicyOptions{})
	b.changes("tiers: []\n", admin.PolicyOptions{})
	b.changes("rules:\n"+onlyPro, admin.PolicyOptions{Prune: true}, "rule free deleted with its limits and overrides", "rule spare deleted with its limits and overrides",
		"limit free/per_hour deleted with its overrides", "limit free/per_month deleted with its overrides")
	b.changes("tiers:\n  - tier: pro\n", admin.PolicyOptions{Prune: true}, "tier pro changed rank: 2 → 0", "tier free deleted with its overrides")
	b.changes("users: []\noverrides: []", admin.PolicyOptions{Users: true, Prune: true}, "user ann deleted with its keys and overrides", "override pro/per_hour for user ann deleted")
	b.changes("rules: []\n", admin.PolicyOptions{Prune: true}, "rule pro deleted with its limits and overrides", "limit pro/per_hour deleted with its overrides")
}

func TestAPolicyThatCannotBeIsRefusedAsAWhole(t *testing.T) {
	b := newPolicyBench(t)
	if _, err := b.apply(twoPlans, admin.PolicyOptions{}); err != nil {
		t.Fatal(err)
	}
	b.sql("INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free')")
	before := b.text(contentSQL)
	rule := func(fields string) string {
		return "tiers:\n  - tier: new\nrules:\n  - name: other\n    limits: [{name: l, events: 1, per: 1s}]\n  - name: x\n    limits: [{name: l, events: 1, per: 1s}]\n" + fields
	}
	for _, c := range []struct {
		file string
		want []string
	}{
		{"", []string{"the file is empty", "tiers", "rules"}},
		{"rules: [", []string{"line 1"}},
		{"- a", []string{"line 1: must be fields"}},
		{"rules: []\n---\nrules: []", []string{"one document"}},
		{"rules: x", []string{"line 1: rules: must be a list"}},
		{"rule: []", []string{"line 1: rule: unknown: must be one of tiers, users, keys, rules, overrides (did you mean rules?)"}},
		{"bans: []", []string{"line 1: bans: unknown: must be one of tiers, users, keys, rules, overrides"}},
		{"rules: []\nrules: []", []string{"line 2: rules: must be given once, and is on line 1 as well"}},
		{rule("    priorty: 5\n"), []string{`line 8: rule "x": priorty: unknown: must be one of name, `, "(did you mean priority?)"}},
		{rule("    priority: high\n    cost: 1.5\n"), []string{`line 8: rule "x": priority: "high": must be a whole number`, `line 9: rule "x": cost: "1.5": must be a whole number`}},
		{rule("    mode: enforced\n"), []string{`line 8: rule "x": mode: "enforced": must be`}},
		{rule("    action: deny\n"), []string{`line 8: rule "x": action: "deny": must be`}},
		{rule("    action: block\n"), []string{`rule "x": action: 'block': must be limit for a rule with limits`}},
		{rule("    tiers: free\n"), []string{`line 8: rule "x": tiers: "free": must be a list, as in [a, b]`}},
		{rule("    tiers: []\n"), []string{`line 8: rule "x": tiers: "[]": must be one or more values`}},
		{rule("    tiers: [[free]]\n"), []string{`line 8: rule "x": tiers: must be a text`}},
		{rule("    comment: {a: b}\n"), []string{`line 8: rule "x": comment: must be a text`}},
		{rule("    networks: [10.0.0.1/8]\n"), []string{`line 8: rule "x": networks: "10.0.0.1/8": must be the first address`}},
		{rule("    valid: 2026-11-27\n"), []string{`line 8: rule "x": valid: "2026-11-27": must be FROM..UNTIL`}},
		{rule("    valid: 2026-11-27..2026-11-26\n"), []string{`line 8: rule "x": valid: "2026-11-27..2026-11-26": must be FROM..UNTIL`, "the end is after the begin"}},
		{rule("    retry_after: 5 minutes\n"), []string{`line 8: rule "x": retry_after: "5 minutes": must be a duration such as 30s`}},
		{rule("  - name: x\n    mode: off\n"), []string{`line 8: rule "x": must be there once, and is on line 6 as well`}},
		{rule("  - mode: off\n"), []string{`line 8: rule "": name: missing: must be given`}},
		{rule("  - name: y\n"), []string{`line 8: rule "y": limits: missing: a rule that limits must have one or more`}},
		{rule("    family: f\n  - {name: y, family: f, action: block}\n"), []string{`rule "x": priority: "100": must be another than that of the rule "y", which is of the same family`}},
		{"rules:\n  - name: x\n    limits: [{name: l, events: 1, per: 1s, bursts: 3}]", []string{`line 3: limit "x/l": bursts: unknown: must be one of name, events`, "(did you mean burst?)"}},
		{"rules:\n  - name: x\n    limits: [{name: l, per: 1s}]", []string{`limit "x/l": events: missing: must be given, as a whole number from 0 to 9007199254740992, or unlimited`}},
		{"rules:\n  - name: x\n    limits: [{name: l, events: 1, per: 1s, algorithm: bucket}]", []string{`line 3: limit "x/l": algorithm: "bucket": must be`, "token_bucket"}},
		{"keys:\n  - {digest: prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB, user: ann}", []string{"digest: \"…\": must be the SHA-256 of a key, as 64 hexadecimal digits"}},

		{"keys:\n  - {digest: " + strings.Repeat("ab", 32) + ", user: ann, hint: prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB}", []string{`line 2: key "abababababab…": hint: "…": must be the first characters of the key, 16 at most`}},

		// What the database finds.
		{rule("    status: 200\n"), []string{`line 8: rule "x": status: "200": must be 400 to 599`}},
		{rule("    status: 99999999999\n"), []string{`rule "x": status: "99999999999": must be 400 to 599`}},
		{rule("    tiers: [fre]\n"), []string{`line 6: rule "x": tiers: 'fre': must be in the section tiers, or in rate_limit_tiers`}},
		{rule("    paths: [/a//b]\n"), []string{`rule "x": paths: "/a//b": must be `}},
		{rule("    family: plan\n    priority: 700\n"), []string{`line 6: rule "x": priority: "700": must be another than that of the rule "free", which is of the same family`}},
		{"rules:\n  - name: x\n    limits: [{name: l, events: 1, per: 1s, burst: 3}]", []string{`line 3: limit "x/l": burst: "3": needs token bucket or gcra`}},
		{"rules:\n  - name: x\n    limits: [{name: l, events: 1}]", []string{`limit "x/l": exactly one of per and calendar must be given`}},
		{"overrides:\n  - {rule: free, limit: per_day, tier: pro, events: 1}", []string{`line 2: override "free/per_day for tier pro": rule and limit name must be in rate limit rule limits`}},
		{"overrides:\n  - {rule: free, limit: per_hour, tier: gold, events: 1}", []string{`line 2: override "free/per_hour for tier gold": tier: "gold": must be in rate limit tiers`}},
		{"overrides:\n  - {rule: pro, limit: per_hour, tier: pro, events: 1, burst: 3}", []string{`line 2: override "pro/per_hour for tier pro": override with burst must be of token bucket or gcra`}},
		{"overrides:\n  - {rule: pro, limit: per_hour, key: " + strings.Repeat("ab", 32) + ", events: 1}", []string{`key abababababab…": key: "abab`, `must be in rate limit api keys`}},
		{"users:\n  - {user: bob, tier: free}\n  - {user: carl, tier: free}\n  - {user: dora, tier: gold}", []string{`line 4: user "dora": tier: "gold": must be in rate limit tiers`}},
	} {
		_, err := b.apply(c.file, admin.PolicyOptions{Users: true})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s\nthe error is %v, want %s", c.file, err, want)
			}
		}
	}
	if _, err := b.apply("tiers: []", admin.PolicyOptions{Prune: true}); err == nil || !strings.Contains(err.Error(), `tier "free": tier must be in rate limit tiers: Key (tier)=(free) is still referenced`) && !strings.Contains(err.Error(), `tier "free": tier: "free": must be in rate limit tiers`) {
		t.Errorf("a tier with users is deleted: %v", err)
	}
	for _, file := range []string{"users: []", "keys: []", "overrides:\n  - {rule: pro, limit: per_hour, user: ann, events: 1}"} {
		if _, err := b.apply(file, admin.PolicyOptions{}); err == nil || !strings.Contains(err.Error(), "without --users") {
			t.Errorf("%s: %v", file, err)
		}
	}
	if after := b.text(contentSQL); after != before {
		t.Errorf("refused files have changed\n%s\nto\n%s", before, after)
	}
}

// What diff said is what apply does, or apply fails.
func TestApplyDoesWhatDiffSaid(t *testing.T) {
	ctx := context.Background()
	b := newPolicyBench(t)
	want, err := policyfile.Parse([]byte(twoPlans))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := b.db.DiffPolicy(ctx, want, &admin.PolicyOptions{})
	if err != nil || len(plan.Changes) != 9 {
		t.Fatalf("%+v, %v", plan, err)
	}

	// Another session has changed the policy and not committed yet. apply waits, and sees the change.
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 7)"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.db.ApplyPolicy(ctx, want, &admin.PolicyOptions{Expect: plan.Expect})
		ended <- err
	}()
	await.Within(t, time.Minute, "apply waits", func() bool {
		var waits bool
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'rate_limit_tiers'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits)
		return err == nil && waits
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the file or the database has changed since that diff") {
		t.Errorf("apply did what diff did not say: %v", err)
	}
	if n := b.text("SELECT count(*)::text FROM rate_limit_rules"); n != "0" {
		t.Errorf("there are %s rules", n)
	}

	if plan, err = b.db.DiffPolicy(ctx, want, &admin.PolicyOptions{}); err != nil {
		t.Fatal(err)
	}
	applied, err := b.db.ApplyPolicy(ctx, want, &admin.PolicyOptions{Expect: plan.Expect})
	if err != nil || !slices.Equal(texts(applied.Changes), texts(plan.Changes)) || !slices.Contains(texts(plan.Changes), "tier free changed rank: 7 → 1") {
		t.Errorf("diff said %q, apply did %+v, %v", texts(plan.Changes), applied, err)
	}
}

// A dry run changes nothing, refuses what apply refuses, and replays the rules that change.
func TestADryRunReplaysWhatChanges(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 2)
	p.rule("per_hour=4", "algorithm=fixed_window")
	p.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('gold')")
	p.exec("SELECT rate_limit_rule('same', per_hour => 1)")
	var log []request
	for i := range 4 {
		log = append(log, request{at: began.Add(time.Duration(i) * time.Minute), decision: "allowed", prefix: "rule/r", key: "ann", user: "ann", cost: 1},
			request{at: began.Add(time.Duration(i) * time.Minute), decision: "allowed", prefix: "rule/r", key: "bob", user: "bob", tier: "gold", cost: 1})
	}
	p.record(log...)
	file := func(limit, more string) *policyfile.Content {
		want, err := policyfile.Parse([]byte("rules:\n  - name: r\n    limits: [" + limit + "]\n" + more))
		if err != nil {
			t.Fatal(err)
		}
		return want
	}
	o := &admin.PolicyOptions{DryRun: true, Replay: &admin.Period{From: began, Until: began.AddDate(0, 0, 2)}}
	for _, c := range []struct {
		limit, more string
		refused     int64
	}{
		{"{name: per_hour, events: 1, per: 1h, algorithm: fixed_window}", "", 6},
		{"{name: per_hour, events: 1, per: 1h, algorithm: fixed_window}", "overrides:\n  - {rule: r, limit: per_hour, tier: gold, events: 3}", 4},
		{"{name: per_hour, events: 4, per: 1h, algorithm: fixed_window}", "    cost: 2", 4},
	} {
		plan, err := p.db.ApplyPolicy(ctx, file(c.limit, c.more), o)
		if err != nil || len(plan.Replays) != 1 || plan.Replays[0].Replay == nil || plan.Replays[0].Replay.Replayed.Refused != c.refused {
			t.Errorf("%s %s: %+v, %v, want one replay with %d refused", c.limit, c.more, plan, err, c.refused)
		}
	}
	plan, err := p.db.ApplyPolicy(ctx, file("{name: per_hour, events: 4, per: 1h, algorithm: fixed_window}", "  - name: new\n    limits: [{name: l, events: 1, per: 1s}]"), o)
	if err != nil || len(plan.Replays) != 1 || plan.Replays[0].Rule != "new" || !strings.Contains(plan.Replays[0].Problem, "the audit log has no request") {
		t.Errorf("of a new rule: %+v, %v", plan, err)
	}
	if _, err := p.db.ApplyPolicy(ctx, file("{name: per_hour, events: 4, per: 1h}", "    paths: [api]"), o); err == nil || !strings.Contains(err.Error(), "begin with slash") {
		t.Errorf("a dry run of a bad file: %v", err)
	}
	if r := p.replay(); r.Limits[0].Text("algorithm") != "fixed_window" || r.Limits[0].Get("events") != int64(4) {
		t.Errorf("a dry run has changed the rule to %+v", r.Limits)
	}
}
