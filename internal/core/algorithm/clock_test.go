package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A clock was ahead for a time, and has left a row from the future. If the row counts as new, its key is
// decided like a new key. Otherwise the key is refused at most for the time that a row may be ahead, plus the
// time in which the charges of the row expire.
func TestClockIsCorrected(t *testing.T) {
	conformance.EachDefinition(t, 1000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		k := drawState(t, l)
		right := k.Micro
		k.Micro += conformance.DrawJump(t, l) * rapid.SampledFrom([]int64{1, 1, 3}).Draw(t, "times")
		if k.Micro > conformance.MaxTime {
			t.Skip()
		}
		for n := rapid.IntRange(1, 4).Draw(t, "hits"); n > 0; n-- {
			k.take(l, conformance.DrawCost(t, l))
		}
		jumped := *k.rows["p/k"]
		k.Micro = right
		other := newKeys()
		other.Micro = right
		isNew := conformance.Ahead(l, &jumped, right)
		for n := rapid.IntRange(1, 8).Draw(t, "later hits"); n > 0; n-- {
			cost := conformance.DrawCost(t, l)
			got, want := k.take(l, cost), other.take(l, cost)
			if isNew && got != want {
				t.Fatalf("%+v, row %+v at %d: got %+v, want %+v, as without a row", *l, jumped, k.Micro, got,
					want)
			}
			maxRetry := 4*(conformance.Fills(l)+conformance.Span(l)) + 22*conformance.Second
			if got.RetryAfter != ratelimit.Never && got.RetryAfter.Microseconds() > maxRetry {
				t.Fatalf("%+v, row %+v at %d: got %+v, want RetryAfter up to %d µs", *l, jumped, k.Micro,
					got, maxRetry)
			}
			step := conformance.DrawAdvance(t, l, got.RetryAfter)
			k.Micro = min(k.Micro+step, conformance.MaxTime)
			other.Micro = k.Micro
		}
	})
}
