package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// Each time is in exactly one period: its period contains it, is the period of all times in it, and ends
// where the next period starts.
func TestPeriodsLeaveNoGap(t *testing.T) {
	conformance.Check(t, 3000, func(t *rapid.T) {
		l := conformance.DrawLimit(t, "calendar", "p")
		now := rapid.Int64Range(0, conformance.MaxTime).Draw(t, "now")
		start, end := algorithm.Period(l, now)
		if start > now || end <= now {
			t.Fatalf("Period(%+v, %d): got %d to %d, want a period around it", *l, now, start, end)
		}
		for _, at := range []int64{start, end - 1, rapid.Int64Range(start, end-1).Draw(t, "at")} {
			if s, e := algorithm.Period(l, at); s != start || e != end {
				t.Fatalf("Period(%+v, %d): got %d to %d, want %d to %d", *l, at, s, e, start, end)
			}
		}
		if next, _ := algorithm.Period(l, end); next != end {
			t.Fatalf("%+v: start of the next period: got %d, want %d", *l, next, end)
		}
	})
}
