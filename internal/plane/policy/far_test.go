package policy_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// A proxy 150 ms from the database applies changes. While the connection is cut, it applies the rules that it
// has read.
func TestAPolicyFarAway(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	s.exec("SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000)")
	way, dsn := slownet.ListenFor(t, s.dsn, 150*time.Millisecond)
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := s.policyOn(db, policy.Settings{Refresh: 50 * time.Millisecond})
	p.Prepare()
	obeys := func(what, want string) {
		t.Helper()
		await.Within(t, time.Minute, what, func() bool { return decided(t, p, "", "ann") == want })
	}
	same(t, "a look-up", decided(t, p, "key of ann", ""), "ann free rule/plan/per_hour=1000")
	obeys("the rules", "ann free rule/plan/per_hour=1000")
	s.exec("SELECT rate_limit_rule('plan', per_hour => 500)")
	obeys("a change", "ann free rule/plan/per_hour=500")
	way.SetDown(true)
	s.exec("SELECT rate_limit_rule('plan', per_hour => 400)")
	polled := p.Stats().Polled
	await.Within(t, time.Minute, "a report that the way is cut", func() bool { return s.reports() != "" })
	same(t, "the user while the way is cut", decided(t, p, "", "ann"), "ann free rule/plan/per_hour=500")
	same(t, "the key while the way is cut", decided(t, p, "key of ann", ""),
		"ann free rule/plan/per_hour=500")
	way.SetDown(false)
	obeys("the change that was made meanwhile", "ann free rule/plan/per_hour=400")
	if !p.Stats().Polled.After(polled) {
		t.Errorf("got the last poll at %v, want it after %v", p.Stats().Polled, polled)
	}
}
