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
