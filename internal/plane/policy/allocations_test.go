package policy_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// Deciding allocates nothing where the counters are of users.
func TestADecisionAllocatesNothing(t *testing.T) {
	for _, remember := range []int{0, 1000} {
		decide := policytest.Repeat(1000, remember, false)
		if allocs := testing.AllocsPerRun(10, func() { decide(64) }); allocs != 0 {
			t.Errorf("remember %d: %v allocations in 64 decisions", remember, allocs)
		}
	}
}
