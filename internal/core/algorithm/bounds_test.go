package algorithm_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// While the clock is set back now and then, a hit passes only if it would pass at the time of the key's
// latest hit. So no more is admitted than by a right clock.
func TestAdmittedCostStaysWithinBound(t *testing.T) {
	conformance.EachDefinition(t, 2000, func(t *rapid.T, name string) {
		k, l := newKeys(), conformance.DrawLimit(t, name, "p")
		var log []entry
		last, retry := int64(0), time.Duration(0)
		for n := rapid.IntRange(1, 40).Draw(t, "steps"); n > 0; n-- {
			k.Micro += conformance.DrawAdvance(t, l, retry)
			if rapid.IntRange(0, 4).Draw(t, "set back") == 0 {
				k.Micro = max(k.Micro-rapid.Int64Range(0, 5*conformance.Second).Draw(t, "by"),
					last-10*conformance.Second)
			}
			if k.Micro > conformance.MaxTime {
				break
			}
			cost := conformance.DrawCost(t, l)
			d := k.take(l, cost)
			if retry = d.RetryAfter; !d.Allowed {
				continue
			}
			last = max(last, k.Micro)
			if left := remaining(l, log, last); left.Cmp(big.NewRat(cost, 1)) < 0 {
				t.Fatalf("%+v: cost %d passes at %d with %s left by the log %v", *l, cost, k.Micro,
					left.FloatString(6), log)
			}
			log = append(log, entry{last, cost})
		}
	})
}
