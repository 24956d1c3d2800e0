package algorithm_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A share of 1/n has an n-th of the row's remaining quota, at most one unit more, and at most two units less.
func TestSharesAddUpToRow(t *testing.T) {
	start := int64(1_700_000_000) * conformance.Second
	limits := conformance.Limits("", 100)
	limits = append(limits, conformance.Limits("small", 7)...)
	limits = append(limits, &ratelimit.Limit{Prefix: "even", Algorithm: ratelimit.TokenBucket, Events: 1000,
		Burst: 20, Window: time.Hour})
	for _, l := range limits {
		for _, n := range []float64{1, 2, 3, 5, 2.5, 1000} {
			for used := int64(0); used <= l.Capacity(); used++ {
				for _, later := range []time.Duration{0, l.Window / 3, l.Window, l.Window * 5 / 3} {
					var row algorithm.Row
					if used > 0 {
						algorithm.Of(l).Charge(l, &row, start, 1, used)
					}
					now := start + later.Microseconds()
					left, _ := algorithm.Of(l).Peek(l, &row, now)
					shared := algorithm.ShareLimit(l, n)
					if err := shared.Validate(); err != nil {
						t.Fatalf("%s, share 1/%v: got the error %v, want none", l.Prefix, n, err)
					}
					algorithm.ShareRow(&row, n)
					got, _ := algorithm.Of(&shared).Peek(&shared, &row, now)
					if float64(got) > float64(left)/n+1 || float64(got) < float64(left)/n-2 {
						t.Fatalf("%+v, %d used, %v later: share 1/%v: got %d left of %d, want %.1f to %.1f",
							*l, used, later, n, got, left, float64(left)/n-2, float64(left)/n+1)
					}
					if n == 1 && got != left {
						t.Fatalf("%+v: share 1/1: got %d left, want %d", *l, got, left)
					}
				}
			}
		}
	}
}
