package policy_test

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// BenchmarkEvaluate measures a decision without the database, with few rules and with many rules that include
// networks.
func BenchmarkEvaluate(b *testing.B) {
	for _, rules := range []int{5, 1000} {
		for _, sender := range []string{"key", "nobody"} {
			for _, remember := range []int{0, 1000} {
				b.Run(fmt.Sprintf("rules=%d/%s/remember=%d", rules, sender, remember), func(b *testing.B) {
					rows, facts, identities := policytest.Mix(rules)
					if sender == "nobody" {
						clear(identities)
					}
					s := policy.Compile(rows, nil, nil, remember)
					var v policy.Verdict
					for i := range 3 * 64 {
						policy.Evaluate(s, facts[i%64], identities[i%64], policytest.Now, &v)
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						policy.Evaluate(s, facts[i%64], identities[i%64], policytest.Now, &v)
					}
				})
			}
		}
	}
}
