package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// A rule that is renamed while requests come counts on, exactly. A new rule with its old name
// counts from zero. The history goes on as the counters do. A proxy of an older version takes the name of a rule for that of its counters: it
// counts together with the others until the rule is renamed, and for itself from then on.
func TestARenamedRuleCountsOn(t *testing.T) {
	dsn := policyDatabase(t, people+`SELECT rate_limit_rule('plan', algorithm => 'fixed_window', per_hour => 200);`)
	urls := governedBy(t, dsn, []string{"timeout 30s", "on_error deny", "audit denied"}, decideAlways(object{"audit": "denied"}))
	awaitObeyed(t, dsn, len(urls))
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := postgres.New(db, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	// older is how many of some requests the version before admits with a rule of that name.
	older := func(rule string, requests int) (passed int) {
		t.Helper()
		limit := &ratelimit.Limit{Prefix: "rule/" + rule + "/per_hour", Algorithm: ratelimit.FixedWindow, Events: 200, Window: time.Hour}
		for range requests {
			var d [1]ratelimit.Decision
			if err := old.Take(t.Context(), 10*time.Second, []ratelimit.Hit{{Limit: limit, Key: "alice", Cost: 1}}, d[:]); err != nil {
				t.Fatal(err)
			}
			if d[0].Allowed {
				passed++
			}
		}
		return passed
	}
	check := func(when, prefix string, want int64) {
		t.Helper()
		if n := sumOf(t, dsn, prefix); n != want {
			t.Errorf("%s: %s is charged %d, want %d", when, prefix, n, want)
		}
	}

	passed := sendAs(t, urls, "/", 30, "alice")["alice"] + int64(older("plan", 20))
	if passed != 50 {
		t.Fatalf("%d of 50 passed", passed)
	}
	check("before the rename", "rule/plan/per_hour", 50)
	r := harness.Run(t.Context(), harness.Load{Clients: 16, Requests: 120, Request: func(i int) *http.Request {
		if i == 40 {
			execute(t, dsn, "UPDATE rate_limit_rules SET name = 'plans' WHERE name = 'plan'")
		}
		return harness.Get(urls[i%len(urls)]+"/", "X-User", "alice")
	}})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Status[http.StatusOK] != 120 {
		t.Errorf("during the rename: %v, want 120 that pass", r)
	}
	awaitObeyed(t, dsn, len(urls))
	check("after the rename", "rule/plan/per_hour", 170)
	check("after the rename", "rule/plans/per_hour", 0)
	if n := sendAs(t, urls, "/", 90, "alice")["alice"]; n != 30 {
		t.Errorf("%d passed, want the 30 that are left of 200", n)
	}

	if n := older("plans", 5); n != 5 {
		t.Errorf("an older proxy admits %d of 5 after the rename, want all: it counts for itself", n)
	}
	check("with an older proxy", "rule/plan/per_hour", 200)
	check("with an older proxy", "rule/plans/per_hour", 5)

	execute(t, dsn, "SELECT rate_limit_rule('plan', algorithm => 'fixed_window', per_hour => 10); DELETE FROM rate_limit_rules WHERE name = 'plans'")
	awaitObeyed(t, dsn, len(urls))
	if n := sendAs(t, urls, "/", 60, "alice")["alice"]; n != 10 {
		t.Errorf("%d passed by a new rule with the old name, want 10", n)
	}
	check("with a new rule", "rule/plan/per_hour", 200)
	check("with a new rule", "rule/plan-2/per_hour", 10)

	// The history has the name of the counters, too, whatever the rule is called.
	for prefix, want := range map[string][2]int64{"rule/plan": {240, 60}, "rule/plan-2": {60, 50}, "rule/plans": {}} {
		await(t, "the history of "+prefix, func() bool {
			return queryInt(t, dsn, "SELECT coalesce(sum(requests), 0)::bigint FROM rate_limit_metrics WHERE granularity = 'minute' AND prefix = $1", prefix) == want[0] &&
				queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_audit WHERE decision = 'limited' AND prefix = $1", prefix) == want[1]
		})
	}
}
