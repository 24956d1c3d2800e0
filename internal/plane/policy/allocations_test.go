package policy_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// Evaluate allocates no memory if all rules count by user.
func TestEvaluateAllocatesNothing(t *testing.T) {
	for _, remember := range []int{0, 1000} {
		decide := policytest.Repeat(1000, remember)
		minAllocs := 1.0
		for i := 0; i < 10 && minAllocs > 0; i++ { // goroutines of other tests allocate too
			minAllocs = min(minAllocs, testing.AllocsPerRun(10, func() { decide(64) }))
		}
		if minAllocs > 0 {
			t.Errorf("remember %d: 64 decisions allocated memory, want none", remember)
		}
	}
}
