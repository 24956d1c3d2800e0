package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// BenchmarkDecide: see policytest.Mix for the rules and the requests.
func BenchmarkDecide(b *testing.B) {
	for _, rules := range []int{10, 100, 1000, 10000} {
		for _, remember := range []int{0, 1000} {
			b.Run(fmt.Sprintf("rules=%d/remember=%d", rules, remember), func(b *testing.B) {
				decide := policytest.Repeat(rules, remember, false)
				b.ReportAllocs()
				b.ResetTimer()
				hits := decide(b.N)
				b.ReportMetric(float64(hits)/float64(b.N), "hits/op")
			})
		}
	}
}

// BenchmarkBans decides requests of addresses in and out of 10,000 banned networks.
func BenchmarkBans(b *testing.B) {
	s := policy.Compile(nil, nil, bannedNetworks(10000), policy.Options{})
	addresses := make([]netip.Addr, 64)
	for i := range addresses {
		addresses[i] = netip.AddrFrom4([4]byte{byte(i * 4), byte(i), byte(i), 1})
	}
	f := policy.Facts{Tier: "anonymous", Method: "GET", Path: "/"}
	var o policy.Verdict
	b.ReportAllocs()
	for i := range b.N {
		f.Address = addresses[i%64]
		policy.Evaluate(s, &f, nil, policytest.Now, &o)
	}
}

func bannedNetworks(n int) []policy.Ban {
	pick := policytest.Numbers(1)
	bans := make([]policy.Ban, n)
	for i := range bans {
		a := netip.AddrFrom4([4]byte{byte(pick(256)), byte(pick(256)), byte(pick(256)), byte(pick(256))})
		bans[i] = policy.Ban{Network: netip.PrefixFrom(a, 8+pick(25)), Until: policytest.Now.Add(time.Duration(pick(100)-50) * time.Minute)}
	}
	return bans
}

func BenchmarkCompile(b *testing.B) {
	rules, _, _ := policytest.Mix(1000)
	for range b.N {
		policy.Compile(rules, nil, nil, policy.Options{})
	}
}

// Deciding allocates nothing where the counters are of users.
func TestADecisionAllocatesNothing(t *testing.T) {
	for _, remember := range []int{0, 1000} {
		decide := policytest.Repeat(1000, remember, false)
		if allocs := testing.AllocsPerRun(10, func() { decide(64) }); allocs != 0 {
			t.Errorf("remember %d: %v allocations in 64 decisions", remember, allocs)
		}
	}
}
