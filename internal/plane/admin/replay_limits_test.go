package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// The amount for a request is that of its key, else of its user, else of its tier.
func TestAReplayUsesTheOverridesOfNow(t *testing.T) {
	p := newPast(t, 2)
	p.exec("INSERT INTO rate_limit_tiers (tier, rank) VALUES ('gold', 1)")
	p.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'gold'), ('bob', 'gold')")
	p.exec("INSERT INTO rate_limit_api_keys (id, digest, hint, user_id) OVERRIDING SYSTEM VALUE VALUES (7, sha256('7'), 'prl_0000…', 'ann')")
	p.rule("per_hour=1", "algorithm=fixed_window")
	p.exec(`INSERT INTO rate_limit_overrides (rule, limit_name, tier, user_id, key_id, events, valid) VALUES ('r', 'per_hour', 'gold', NULL, NULL, 2, '(,)'),
		('r', 'per_hour', NULL, 'ann', NULL, 4, '(,)'), ('r', 'per_hour', NULL, NULL, 7, 6, '(,)'), ('r', 'per_hour', NULL, 'bob', NULL, 9, '(,2026-01-01)')`)
	for _, c := range []struct {
		what   string
		sender request
		want   int64 // passed of 20
	}{
		{"nobody", request{key: "10.0.0.1"}, 3},
		{"the tier", request{key: "carl", user: "carl", tier: "gold"}, 2},
		{"the override has ended", request{key: "bob", user: "bob", tier: "gold"}, 2},
		{"the user", request{key: "ann", user: "ann", tier: "gold"}, 4},
		{"the key", request{key: "ann", user: "ann", tier: "gold", keyID: 7}, 6},
		{"another key", request{key: "ann", user: "ann", tier: "gold", keyID: 8}, 4},
	} {
		var log []request
		for i := range 20 {
			row := c.sender
			row.at, row.decision, row.prefix, row.cost = began.Add(time.Duration(i)*time.Second), "allowed", "rule/r", 1
			log = append(log, row)
		}
		p.record(log...)
		if r := p.replay("per_hour=3"); r.Replayed.Passed != c.want {
			t.Errorf("%s: %d pass, want %d", c.what, r.Replayed.Passed, c.want)
		}
	}
}

// Windows of a month begin on the day of the user's billing period.
func TestAReplayFollowsBillingPeriods(t *testing.T) {
	p := newPast(t, 20)
	p.exec("INSERT INTO rate_limit_tiers (tier, rank) VALUES ('gold', 1)")
	p.exec("INSERT INTO rate_limit_users (user_id, tier, period_start) VALUES ('ann', 'gold', '2026-01-09'), ('bob', 'gold', NULL)")
	p.rule("per_month=9")
	var log []request
	for day := range 20 { // from 2 March to 21 March
		for _, user := range []string{"ann", "bob"} {
			log = append(log, request{at: began.AddDate(0, 0, day), decision: "allowed", prefix: "rule/r", key: user, user: user, tier: "gold", cost: 1})
		}
	}
	p.record(log...)
	r := p.replay("per_month=5")
	passed := map[string]int64{}
	for _, c := range r.Changed {
		passed[c.Key] = c.Requests - c.Replayed
	}
	if passed["ann"] != 10 || passed["bob"] != 5 {
		t.Errorf("passed: %v, want 10 of ann, whose second month begins on 9 March, and 5 of bob", passed)
	}
}

// TestAReplayHasTheLimitsOfRulesSet: random settings make the same limits in a replay as `rules
// set` makes in the database.
func TestAReplayHasTheLimitsOfRulesSet(t *testing.T) {
	p := newPast(t, 1)
	ctx := context.Background()
	settings := []*rapid.Generator[string]{
		rapid.SampledFrom([]string{"per_second=3", "per_second=", "per_second=unlimited", "per_second=0"}),
		rapid.SampledFrom([]string{"per_hour=30", "per_hour=", "per_hour=unlimited", "per_hour=9"}),
		rapid.SampledFrom([]string{"per_month=30", "per_month=", "per_month=unlimited"}),
		rapid.SampledFrom([]string{"limit.a=7/10s", "limit.a=", "limit.a=unlimited/2h", "limit.a=9/1mo calendar Europe/Berlin"}),
		rapid.SampledFrom([]string{"limit.per_hour=7/10s", "limit.b=7/1d calendar", "limit.b=5/3h", "limit.z=9/1h"}),
		rapid.SampledFrom([]string{"algorithm=gcra", "algorithm=token_bucket", "algorithm=fixed_window"}),
		rapid.SampledFrom([]string{"burst=5", "burst="}),
		rapid.SampledFrom([]string{"on_exceed=overage", "on_exceed=refuse", "on_exceed="}),
		rapid.SampledFrom([]string{"durable=true", "durable=false", "durable="}),
		rapid.SampledFrom([]string{"cost=2", "cost="}),
	}
	draw := func(t *rapid.T, label string) []string {
		var all []string
		for i, setting := range settings {
			if rapid.Bool().Draw(t, fmt.Sprint(label, i)) {
				all = append(all, setting.Draw(t, label))
			}
		}
		return all
	}
	p.record(request{at: began, decision: "allowed", prefix: "rule/r", key: "ann", cost: 1})
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		p.exec("DELETE FROM rate_limit_rules")
		if _, err := p.db.SetRule(ctx, "r", append(draw(t, "before"), "limit.z=1/1m")); err != nil {
			return // not a rule
		}
		if rapid.Bool().Draw(t, "two algorithms") {
			p.exec("UPDATE rate_limit_rule_limits SET algorithm = CASE algorithm WHEN 'fixed_window' THEN 'sliding_window' ELSE 'fixed_window' END, burst = NULL WHERE rule = 'r' AND name = 'z'")
		}
		change := draw(t, "change")
		if len(change) == 0 {
			return
		}
		r, tryErr := p.try(change...)
		if _, err := p.db.SetRule(ctx, "r", change); err != nil {
			return // the server refuses it
		}
		rules, err := p.db.Rules(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if tryErr != nil {
			if len(rules[0].Problems) == 0 {
				t.Fatalf("%q: the replay says %v, and the rule can be used", change, tryErr)
			}
			return
		}
		want := rules[0].Limits
		slices.SortFunc(want, func(a, b admin.RuleLimit) int { return strings.Compare(a.Name, b.Name) })
		wantJSON, _ := json.Marshal(want)
		gotJSON, _ := json.Marshal(r.Limits)
		if string(gotJSON) != string(wantJSON) {
			t.Fatalf("%q: the limits of the replay are\n%s\nwant\n%s", change, gotJSON, wantJSON)
		}
		compared++
	})
	if compared == 0 {
		t.Error("no rule was compared")
	}
}
