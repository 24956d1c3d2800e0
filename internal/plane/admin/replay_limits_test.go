package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

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

// A replay refuses what `rules set` refuses, with the same words, and reads only unless it has settings.
func TestAReplayRefusesWhatRulesSetRefuses(t *testing.T) {
	p := newPast(t, 1)
	ctx := context.Background()
	p.rule("per_hour=3", "algorithm=fixed_window")
	for _, settings := range [][]string{{"burst=5"}, {"limit.a=7/10s", "algorithm=gcra", "on_exceed=overage"}} {
		_, tryErr := p.try(settings...)
		_, setErr := p.db.Set(ctx, admin.SetRule, "r", settings, false)
		if tryErr == nil || setErr == nil || tryErr.Error() != setErr.Error() {
			t.Errorf("%q: the replay says\n%v\nand rules set\n%v", settings, tryErr, setErr)
		}
	}
	p.record(request{at: began, decision: "allowed", prefix: "rule/r", key: "ann", cost: 1})
	p.exec("ALTER DATABASE " + p.conn.Config().Database + " SET default_transaction_read_only = on")
	reader, err := admin.Open(ctx, p.conn.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	q := admin.ReplayQuery{Period: admin.Period{From: began, Until: began.Add(time.Hour)}, Rule: "r"}
	if r, err := reader.Replay(ctx, &q); err != nil || r.Requests != 1 {
		t.Errorf("without settings: %+v, %v", r, err)
	}
	q.Settings = []string{"per_hour=2"}
	if _, err := reader.Replay(ctx, &q); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("with settings: %v", err)
	}
}
