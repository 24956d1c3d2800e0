package policytest

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Mix returns n selective rules, and 64 requests with their identities, for benchmarks. Three rules form a
// family of plans (free, pro, enterprise), and one protects /api/v1/*. Of the other rules, 60 % have their
// own path, 20 % a host, 10 % a network and 10 % a tier. Half of them also have a method, and one in ten has
// an end. Each request is charged to two to four rules.
func Mix(n int) ([]policy.Rule, []*policy.Facts, []*policy.Identity) {
	hour := []policy.RuleLimit{{Name: "hour", Limit: ratelimit.Limit{Events: 1000, Window: time.Hour}}}
	rules := []policy.Rule{{Name: "protect", Priority: 600, Paths: []string{"/api/v1/*"},
		CountBy: []string{"all"}, Limits: hour}}
	for i, tier := range []string{"free", "pro", "enterprise"} {
		rules = append(rules, policy.Rule{Name: tier, Family: "plan", Priority: int64(700 + i),
			Tiers: []string{tier}, Limits: hour})
	}
	for i := 4; i < n; i++ {
		suffix := strconv.Itoa(i)
		r := policy.Rule{Name: "rule" + suffix, Priority: int64(i % 50), Limits: hour}
		switch i % 10 {
		case 0:
			r.Hosts = []string{"h" + suffix + ".example.com"}
		case 1:
			r.Hosts = []string{"*.h" + suffix + ".example.com"}
		case 2:
			r.Networks = []netip.Prefix{netip.PrefixFrom(
				netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}
		case 3:
			r.Tiers = []string{"tier" + suffix}
		default:
			r.Paths = []string{"/api/v1/customers/" + suffix + "/*"}
		}
		if i%2 == 0 {
			r.Methods = []string{"GET"}
		}
		if i%10 == 7 {
			r.Until = Now.Add(time.Hour)
		}
		rules = append(rules, r)
	}
	var facts []*policy.Facts
	var identities []*policy.Identity
	for i := 0; i < 64; i++ {
		suffix := strconv.Itoa(4 + i*(n-4)/64)
		f := &policy.Facts{Tier: "anonymous", Method: "GET", Host: "api.example.com",
			Path:    "/api/v1/customers/" + suffix + "/orders",
			Address: netip.AddrFrom4([4]byte{10, byte(i), byte(i), 7})}
		if i%4 == 0 {
			f.Host = "h" + suffix + ".example.com"
			f.Path = "/index.html"
		}
		facts = append(facts, f)
		identities = append(identities, &policy.Identity{Digest: policy.Digest(suffix), Known: true,
			KeyID: int64(i + 1), User: "user" + suffix, Tier: []string{"free", "pro", "enterprise"}[i%3]})
	}
	return rules, facts, identities
}

// Repeat returns a function that decides requests of a Mix and returns the number of hits. Repeat has already
// decided each request three times.
func Repeat(rules, remember int) func(requests int) int {
	rows, facts, identities := Mix(rules)
	s := policy.Compile(rows, nil, nil, remember)
	var o policy.Verdict
	decide := func(requests int) int {
		hits := 0
		for i := 0; i < requests; i++ {
			policy.Evaluate(s, facts[i%64], identities[i%64], Now, &o)
			hits += len(o.Hits)
		}
		return hits
	}
	decide(3 * 64)
	return decide
}
