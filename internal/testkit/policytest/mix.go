package policytest

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Repeat returns a function that decides requests of 64 API keys by a number of rules that count by user, and
// returns the number of hits. Each request is charged to the rule of its tier, and most to one of their own
// path or host. Repeat has already decided each request three times.
func Repeat(rules, remember int) func(requests int) int {
	hour := []policy.RuleLimit{{Name: "hour", Limit: ratelimit.Limit{Events: 1000, Window: time.Hour}}}
	rows := []policy.Rule{{Name: "plan", Tiers: []string{"free"}, Methods: []string{"GET"}, Limits: hour}}
	var facts []*policy.Facts
	var identities []*policy.Identity
	for i := 1; i < rules; i++ {
		own := strconv.Itoa(i)
		r := policy.Rule{Name: own, Limits: hour}
		f := &policy.Facts{Tier: "anonymous", Method: "GET", Host: "a.test", Path: "/",
			Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		switch i % 4 {
		case 0:
			r.Hosts, f.Host = []string{"*.h" + own + ".test"}, "x.h"+own+".test"
		case 1:
			network := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)})
			r.Networks = []netip.Prefix{netip.PrefixFrom(network, 24)}
		default:
			r.Paths, f.Path = []string{"/" + own + "/*"}, "/"+own+"/x"
		}
		rows = append(rows, r)
		facts = append(facts, f)
		identities = append(identities, &policy.Identity{Digest: policy.Digest(own), Known: true,
			KeyID: int64(i), User: "user" + own, Tier: "free"})
	}
	s := policy.Compile(rows, nil, nil, remember)
	var o policy.Verdict
	decide := func(requests int) int {
		hits := 0
		for i := range requests {
			policy.Evaluate(s, facts[i%64], identities[i%64], Now, &o)
			hits += len(o.Hits)
		}
		return hits
	}
	decide(3 * 64)
	return decide
}
