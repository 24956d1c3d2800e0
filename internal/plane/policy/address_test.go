package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// addressRule returns a rule for networks that counts by address.
func addressRule(name string, action policy.Action, networks ...string) policy.Rule {
	r := policy.Rule{Name: name, Action: action, CountBy: []string{"ip"}}
	for _, text := range networks {
		r.Networks = append(r.Networks, netip.MustParsePrefix(text))
	}
	if action == "" {
		limit := ratelimit.Limit{Events: 9, Window: time.Minute}
		r.Limits = []policy.RuleLimit{{Name: "l", Limit: limit}}
	}
	return r
}

// evaluateAddress returns the verdict on a request from an address; "" is unknown.
func evaluateAddress(s *policy.Snapshot, address string) *policy.Verdict {
	f := &policy.Facts{Path: "/"}
	if address != "" {
		f.Address = netip.MustParseAddr(address)
	}
	v := &policy.Verdict{}
	policy.EvaluateFound(s, f, nil, time.Now(), v)
	return v
}

// A rule of a family that matches only by the IPv4 address behind NAT64 takes the place of no other rule.
func TestNAT64TakesNoGenerousRuleOfFamily(t *testing.T) {
	staff, public := addressRule("staff", "", "192.0.2.0/24"), addressRule("public", "")
	staff.Family, staff.Priority, public.Family = "plan", 2, "plan"
	s := policy.Compile([]policy.Rule{staff, public}, nil, nil, 0)
	for address, want := range map[string]string{
		"192.0.2.7": "[staff]", "64:ff9b::c000:207": "[staff public]", "198.51.100.1": "[public]",
	} {
		var rules []string
		for _, m := range evaluateAddress(s, address).Terms {
			rules = append(rules, m.Rule)
		}
		if got := fmt.Sprint(rules); got != want {
			t.Errorf("%s: the rules %s are charged, want %s", address, got, want)
		}
	}
}
