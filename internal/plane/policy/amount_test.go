package policy_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// An unlimited amount, and none, suit every burst: nothing is counted.
func TestAnOverrideOfALimitWithALargeBurst(t *testing.T) {
	large := ratelimit.Limit{Algorithm: ratelimit.GCRA, Events: 1000000, Window: 24 * time.Hour, Burst: 1000000}
	rules := []policy.Rule{{Name: "plan", Limits: []policy.RuleLimit{{Name: "day", Limit: large}}}}
	for _, test := range []struct {
		override policy.Override
		reason   policy.Reason
		hits     int
	}{
		{policy.Override{Rule: "plan", Limit: "day", User: "alice", Unlimited: true}, policy.NotRefused, 0},
		{policy.Override{Rule: "plan", Limit: "day", User: "alice"}, policy.NoQuota, 0},
		{policy.Override{Rule: "plan", Limit: "day", User: "bob"}, policy.NotRefused, 1},
	} {
		s := policy.Compile(rules, nil, nil, policy.Options{})
		var o policy.Verdict
		policy.Evaluate(s, &policy.Facts{Path: "/"}, &policy.Identity{Known: true, User: "alice", Tier: "pro", Overrides: []policy.Override{test.override}}, now, &o)
		if o.Reason != test.reason || len(o.Hits) != test.hits {
			t.Errorf("%+v: reason %v, %d hits, want %v, %d hits", test.override, o.Reason, len(o.Hits), test.reason, test.hits)
		}
	}
	large.Events = 0
	for _, l := range []policy.RuleLimit{{Name: "none", Limit: large}, {Name: "unlimited", Limit: large, Unlimited: true}} {
		if wrong := policy.Compile([]policy.Rule{{Name: "plan", Limits: []policy.RuleLimit{l}}}, nil, nil, policy.Options{}).Wrong(); len(wrong) > 0 {
			t.Errorf("%s: %v", l.Name, wrong[0].Err)
		}
	}
}
