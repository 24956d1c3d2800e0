package policy_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// A proxy with a latency of 150 ms to the database applies changes. While the connection is cut, it applies
// the rules in memory.
func TestPolicyOverSlowNetwork(t *testing.T) {
	d := newTestDB(t)
	d.addUser("ann", "free")
	d.exec("SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000)")
	link, dsn := slownet.ListenFor(t, d.dsn, 150*time.Millisecond)
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := d.newPolicyOn(db, policy.Settings{Refresh: 50 * time.Millisecond})
	p.Prepare()
	awaitOutcome := func(what, want string) {
		t.Helper()
		await.Within(t, time.Minute, what, func() bool { return outcomeOf(t, p, "", "ann") == want })
	}
	checkEqual(t, "a look-up", outcomeOf(t, p, "key of ann", ""), "ann free rule/plan/per_hour=1000")
	awaitOutcome("the rules", "ann free rule/plan/per_hour=1000")
	d.exec("SELECT rate_limit_rule('plan', per_hour => 500)")
	awaitOutcome("a change", "ann free rule/plan/per_hour=500")
	link.SetDown(true)
	d.exec("SELECT rate_limit_rule('plan', per_hour => 400)")
	polled := p.Stats().Polled
	await.Within(t, time.Minute, "a report", func() bool { return d.reportedErrors() != "" })
	checkEqual(t, "the user while the connection is cut", outcomeOf(t, p, "", "ann"),
		"ann free rule/plan/per_hour=500")
	checkEqual(t, "the key while the connection is cut", outcomeOf(t, p, "key of ann", ""),
		"ann free rule/plan/per_hour=500")
	link.SetDown(false)
	awaitOutcome("the change made meanwhile", "ann free rule/plan/per_hour=400")
	if !p.Stats().Polled.After(polled) {
		t.Errorf("last poll: got %v, want a time after %v", p.Stats().Polled, polled)
	}
}
