package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

const twoPlans = `{"tiers": [{"tier": "free", "rank": 1}, {"tier": "pro", "rank": 2}],
	"rules": [{"name": "free", "tiers": ["free"], "limits": [{"name": "per_hour", "events": 1000, "per": "1h"}]}]}`

// What diff said is what apply does, or apply fails.
func TestApplyDoesWhatDiffSaid(t *testing.T) {
	ctx := context.Background()
	b := newPolicyBench(t)
	plan, err := b.db.ApplyPolicy(ctx, twoPlans, &admin.PolicyOptions{DryRun: true})
	if err != nil || len(plan.Changes) != 4 {
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
		_, err := b.db.ApplyPolicy(ctx, twoPlans, &admin.PolicyOptions{Expect: plan.Expect})
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

	if plan, err = b.db.ApplyPolicy(ctx, twoPlans, &admin.PolicyOptions{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	applied, err := b.db.ApplyPolicy(ctx, twoPlans, &admin.PolicyOptions{Expect: plan.Expect})
	if err != nil || applied.Expect != plan.Expect || len(plan.Changes) != 4 || plan.Changes[0].Text("what") != "rank" {
		t.Errorf("diff said %+v, apply did %+v, %v", plan, applied, err)
	}
}
