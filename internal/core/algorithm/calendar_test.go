package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// TestPeriodsLeaveNoGap: each moment is in one period.
func TestPeriodsLeaveNoGap(t *testing.T) {
	conformance.Check(t, 3000, func(t *rapid.T) {
		l := conformance.DrawLimit(t, "calendar", "p")
		now := rapid.Int64Range(0, latest).Draw(t, "now")
		start, end := algorithm.Period(l, now)
		if start > now || end <= now {
			t.Fatalf("%+v at %d: from %d to %d", *l, now, start, end)
		}
		for _, at := range []int64{start, end - 1, rapid.Int64Range(start, end-1).Draw(t, "at")} {
			if s, e := algorithm.Period(l, at); s != start || e != end {
				t.Fatalf("%+v at %d: from %d to %d, and at %d from %d to %d", *l, now, start, end, at, s, e)
			}
		}
		if next, _ := algorithm.Period(l, end); next != end {
			t.Fatalf("%+v: a period ends at %d, and the next begins at %d", *l, end, next)
		}
	})
}
