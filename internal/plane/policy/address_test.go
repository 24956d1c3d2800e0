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
	policy.Evaluate(s, f, nil, time.Now(), v)
	return v
}

// A ban or a block of an IPv4 network holds for its clients behind NAT64. An exemption does not, and neither
// does it for an IPv4 address that is private.
func TestNAT64HidesNoClientAndFreesNone(t *testing.T) {
	const client = "64:ff9b::c000:207"
	for _, network := range []string{"192.0.2.0/24", "64:ff9b::/96"} {
		ban := policy.Ban{Network: netip.MustParsePrefix(network)}
		v := evaluateAddress(policy.Compile(nil, nil, []policy.Ban{ban}, 0), client)
		if v.Reason != policy.Banned {
			t.Errorf("the ban of %s does not hold behind NAT64", network)
		}
	}
	for _, test := range []struct {
		action  policy.Action
		network string
		address string
		want    bool
	}{
		{policy.Block, "192.0.2.0/24", client, true},
		{policy.Block, "64:ff9b::/96", client, true},
		{policy.Block, "64:ff9b::/96", "192.0.2.7", false},
		{policy.Exempt, "192.0.2.0/24", client, false},
		{policy.Exempt, "64:ff9b::/96", client, true},
		{policy.Block, "10.0.0.0/8", "64:ff9b::a00:1", false},
		{policy.Exempt, "10.0.0.0/8", "64:ff9b::a00:1", false},
	} {
		s := policy.Compile([]policy.Rule{addressRule("r", test.action, test.network)}, nil, nil, 0)
		v := evaluateAddress(s, test.address)
		if got := v.Reason == policy.Blocked || v.Exempt; got != test.want {
			t.Errorf("%s of %s applies to %s: %v, want %v", test.action, test.network, test.address, got,
				test.want)
		}
	}
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

// An unknown address, as of a Unix socket, is restricted by a rule for all networks. It is neither banned nor
// exempt.
func TestUnknownAddressIsInAllNetworksTogether(t *testing.T) {
	for _, remember := range []int{0, 9} {
		for _, test := range []struct {
			action   policy.Action
			networks []string
			want     bool
		}{
			{policy.Block, []string{"0.0.0.0/0", "::/0"}, true},
			{policy.Block, []string{"::/0", "0.0.0.0/0"}, true},
			{policy.Block, []string{"0.0.0.0/0"}, false},
			{policy.Block, []string{"::/0"}, false},
			{policy.Block, []string{"0.0.0.0/1", "128.0.0.0/1", "::/0"}, false},
			{policy.Exempt, []string{"0.0.0.0/0", "::/0"}, false},
			{"", []string{"0.0.0.0/0", "::/0"}, true},
			{"", []string{"0.0.0.0/0"}, false},
		} {
			rules := []policy.Rule{addressRule("r", test.action, test.networks...)}
			s := policy.Compile(rules, nil, nil, remember)
			v := evaluateAddress(s, "")
			if got := v.Reason == policy.Blocked || v.Exempt || len(v.Hits) > 0; got != test.want {
				t.Errorf("%q of %v applies: %v, want %v", test.action, test.networks, got, test.want)
			}
		}
	}
	bans := []policy.Ban{{Network: netip.MustParsePrefix("0.0.0.0/0")},
		{Network: netip.MustParsePrefix("::/0")}}
	if v := evaluateAddress(policy.Compile(nil, nil, bans, 0), ""); v.Refused() {
		t.Errorf("a ban of all networks refuses an unknown address: %s", v.Reason)
	}
}
