package policy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Evaluate allocates no memory for a known user, with and without remembered verdicts.
func TestEvaluateAllocatesNothing(t *testing.T) {
	rules := []policy.Rule{
		{Name: "tier", Family: "plan", Tiers: []string{"free"}, Limits: perHour(1)},
		{Name: "path", Priority: 1, Paths: []string{"/api/*", "/u/*/files"}, Limits: perHour(1)},
		{Name: "host", Priority: 2, Hosts: []string{"*.b.test"}, Methods: []string{"GET"},
			Until: now.Add(time.Hour).UnixMicro(), Limits: perHour(1)},
		{Name: "network", Priority: 3, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			Limits: perHour(1)},
		{Name: "all", Priority: 4, CountBy: []string{"all"}, Limits: perHour(1)},
	}
	f := &policy.Facts{Method: "GET", Host: "a.b.test", Path: "/u/a/files",
		Address: netip.MustParseAddr("10.1.2.3")}
	id := &policy.Identity{Digest: policy.Digest("k"), Known: true, KeyID: 1, User: "ann", Tier: "free"}
	for _, remember := range []int{0, 1000} {
		s := policy.Compile(rules, nil, nil, remember)
		var v policy.Verdict
		decide := func() { policy.Evaluate(s, f, id, now, &v) }
		for range 3 { // the memo fills in steps
			decide()
		}
		minAllocs := 1.0
		for i := 0; i < 10 && minAllocs > 0; i++ { // goroutines of other tests allocate too
			minAllocs = min(minAllocs, testing.AllocsPerRun(100, decide))
		}
		if minAllocs > 0 || len(v.Hits) != len(rules) {
			t.Errorf("remember %d: %d hits and %v allocations, want %d and 0", remember, len(v.Hits),
				minAllocs, len(rules))
		}
	}
}
