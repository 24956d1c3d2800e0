package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// TestGCRAIsAnEvenlyRefilledBucket: a bucket that gains one token each Window ÷ Events grants, keeps and settles what
// GCRA does, and says the same times. -rapid.checks=1000000 tries a million sequences.
func TestGCRAIsAnEvenlyRefilledBucket(t *testing.T) {
	laws := map[string]*algorithm.Definition{}
	for _, d := range algorithm.All() {
		laws[d.Name] = d
	}
	gcra, bucket := laws["gcra"], laws["even_bucket"]
	conformance.Check(t, 2000, func(t *rapid.T) {
		l := conformance.DrawLimit(t, rapid.SampledFrom([]string{"gcra", "even_bucket"}).Draw(t, "law"), "p")
		now := int64(1_700_000_000) * conformance.Second
		var a, b algorithm.Row
		type charge struct{ at, cost int64 }
		charges := []charge{{}}
		retry := int64(0)
		for n := rapid.IntRange(1, 20).Draw(t, "steps"); n > 0; n-- {
			now = min(latest, now+conformance.DrawAdvance(t, l, algorithm.RetryAfter(retry)))
			cost := conformance.DrawCost(t, l)
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0: // a refund or a settlement, of the last charges or of one
				c := rapid.SampledFrom(charges).Draw(t, "charge")
				change := rapid.Int64Range(-min(l.Capacity(), 1<<20), l.Capacity()).Draw(t, "change")
				// What a row can owe is bounded, and the bounds differ by less than a hit, or for extreme limits.
				left, _ := gcra.Look(l, &a, now)
				if change < 0 && (left+change <= -l.Capacity() || l.Capacity() > 1<<40 || l.Window.Microseconds() > 1<<40/l.Capacity()) {
					continue
				}
				gcra.Adjust(l, &a, now, change, c.at)
				bucket.Adjust(l, &b, now, change, c.at)
			default:
				hits := rapid.Int64Range(1, 4).Draw(t, "n")
				x, y := gcra.Take(l, &a, now, hits, cost), bucket.Take(l, &b, now, hits, cost)
				if x != y {
					t.Fatalf("%+v: %d of %d hits of %d pass, %d in a bucket\n%+v\n%+v", *l, x, hits, cost, y, a, b)
				}
				if x > 0 {
					charges = append(charges, charge{now, x * cost})
				}
			}
			free, reset := gcra.Look(l, &a, now)
			if f, r := bucket.Look(l, &b, now); f != free || r != reset {
				t.Fatalf("%+v at %d: %d are free until %d, in a bucket %d until %d\n%+v\n%+v", *l, now, free, reset, f, r, a, b)
			}
			retry = 0
			if free < cost {
				passes := gcra.Passes(l, &a, now, cost)
				if p := bucket.Passes(l, &b, now, cost); p != passes {
					t.Fatalf("%+v at %d: %d passes at %d, in a bucket at %d\n%+v\n%+v", *l, now, cost, passes, p, a, b)
				}
				retry = passes - now
			}
		}
	})
}
