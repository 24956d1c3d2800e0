package algorithm_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestSharesAreTheRow: the shares of a row have as much left as the row, and at most one more each. At least
// 90 % of it or one less each.
func TestSharesAreTheRow(t *testing.T) {
	start := int64(1_700_000_000) * conformance.Second
	limits := conformance.Limits("", 100)
	limits = append(limits, conformance.Limits("small", 7)...)
	limits = append(limits, &ratelimit.Limit{Prefix: "even", Algorithm: ratelimit.TokenBucket, Events: 1000,
		Burst: 20, Window: time.Hour})
	for _, l := range limits {
		for _, parts := range []float64{1, 2, 3, 5, 2.5, 1000} {
			for used := int64(0); used <= l.Capacity(); used++ {
				for _, later := range []time.Duration{0, l.Window / 3, l.Window, l.Window * 5 / 3} {
					var row algorithm.Row
					if used > 0 {
						algorithm.Of(l).Take(l, &row, start, 1, used)
					}
					now := start + later.Microseconds()
					free, _ := algorithm.Of(l).Peek(l, &row, now)
					shared := algorithm.ShareLimit(l, parts)
					if err := shared.Validate(); err != nil {
						t.Fatalf("%s, one of %v: %v", l.Prefix, parts, err)
					}
					algorithm.ShareRow(&row, parts)
					got, _ := algorithm.Of(&shared).Peek(&shared, &row, now)
					if float64(got) > float64(free)/parts+1 || float64(got) < float64(free)/parts-2 {
						t.Fatalf("%+v, %d used, %v later: one of %v has %d left of %d", *l, used, later,
							parts, got, free)
					}
					if parts == 1 && got != free {
						t.Fatalf("%+v: all has %d left of %d", *l, got, free)
					}
				}
			}
		}
	}
}
