package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestAClockThatIsRightAgain: if a row counts as new, its key is decided like another one from then on. Else
// it admits a full quota at most, and refuses no longer than the row may lie ahead and its charges take to
// go.
func TestAClockThatIsRightAgain(t *testing.T) {
	conformance.EachDefinition(t, 1000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		k := drawState(t, l)
		right := k.Micro
		k.Micro += conformance.DrawJump(t, l) * rapid.SampledFrom([]int64{1, 1, 3}).Draw(t, "times")
		if k.Micro > latest {
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
				t.Fatalf("%+v, row %+v at %d: %+v, want %+v as without a row", *l, jumped, k.Micro, got, want)
			}
			if longest := 2*(conformance.Fills(l)+conformance.Span(l)) +
				11*conformance.Second; got.RetryAfter != ratelimit.Never &&
				got.RetryAfter.Microseconds() > 2*longest {
				t.Fatalf("%+v, row %+v at %d: %+v", *l, jumped, k.Micro, got)
			}
			step := conformance.DrawAdvance(t, l, got.RetryAfter)
			k.Micro = min(k.Micro+step, latest)
			other.Micro = k.Micro
		}
	})
}

// TestARowThatCountsAsNewIsChargedNow: the time of a charge is that of the row's window, refill or last hit
// if the row is ahead, but not if the row is so far ahead that it counts as new.
func TestARowThatCountsAsNewIsChargedNow(t *testing.T) {
	conformance.EachDefinition(t, 300, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		k := drawState(t, l)
		row := k.rows["p/k"]
		if row == nil {
			t.Skip()
		}
		now := k.Micro - conformance.DrawJump(t, l)*rapid.SampledFrom([]int64{1, 3}).Draw(t, "times")
		got := algorithm.ChargedAt(l, row, now)
		if got < now || conformance.Ahead(l, row, now) && got != now {
			t.Fatalf("%+v, row %+v is charged at %d, want %d", *l, row, got, now)
		}
	})
}
