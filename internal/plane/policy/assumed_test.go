package policy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A proxy assumes an address that may be that of a load balancer. A rule of a family does not match such an
// address, so the request stays with the other rules of the family. Block rules and rules without a family do
// match it.
func TestAssumedAddressFreesNoRequest(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	rule := func(name, family string, priority, events int64, networks []netip.Prefix) policy.Rule {
		limit := ratelimit.Limit{Prefix: name, Events: events, Window: time.Minute}
		return policy.Rule{Name: name, Family: family, Priority: priority, Networks: networks,
			CountBy: []string{"ip"}, Limits: []policy.RuleLimit{{Name: "l", Limit: limit}}}
	}
	set := policy.Compile([]policy.Rule{rule("staff", "plan", 2, 1000, networks),
		rule("public", "plan", 1, 10, nil), rule("alone", "", 3, 50, networks)}, nil, nil, 0)
	for assumed, want := range map[bool]string{false: " alone staff", true: " alone public"} {
		var v policy.Verdict
		policy.EvaluateFound(set, &policy.Facts{Address: netip.MustParseAddr("10.0.0.1"), Assumed: assumed},
			&policy.Identity{}, time.Now(), &v)
		got := ""
		for _, m := range v.Terms {
			got += " " + m.Rule
		}
		if got != want {
			t.Errorf("assumed %t: got the rules%s, want%s", assumed, got, want)
		}
	}
}
