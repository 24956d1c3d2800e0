package algorithm_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestAClockThatJumps: a key that was used while the clock was wrong has its full quota when the
// clock is right again, if the row lies further ahead than a window and ten seconds, and counts if
// not.
func TestAClockThatJumps(t *testing.T) {
	const hour = 3600 * conformance.Second
	for _, test := range []struct {
		window time.Duration
		back   int64 // how far the clock goes back after a key was used up
		isNew  bool
	}{
		{time.Hour, 48 * hour, true},
		{10 * time.Second, 600 * conformance.Second, true},
		{10 * time.Second, 20*conformance.Second + 1, true},
		{10 * time.Second, 20 * conformance.Second, false},
		{time.Second, 10 * conformance.Second, false},
		{time.Hour, hour / 2, false},
	} {
		for _, a := range conformance.Algorithms() {
			k, l := newKeys(), &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 10, Window: test.window}
			k.Micro += test.back
			for range 10 {
				k.take(l, 1)
			}
			charged := algorithm.ChargedAt(l, k.rows["p/k"], k.Micro)
			k.Micro -= test.back
			// changes nothing in a row that counts as new
			algorithm.Of(l).Adjust(l, k.rows["p/k"], k.Micro, 1, charged)
			algorithm.Of(l).Adjust(l, k.rows["p/k"], k.Micro, -1, charged)
			want := int64(0)
			if a == ratelimit.SlidingLog {
				want = 1 // a log is not charged afterwards
			}
			if test.isNew {
				want = 10
			}
			d := k.peek(l, 1)
			if d.Allowed != (want > 0) || d.Remaining != want {
				t.Errorf("%s of %v, %d s ahead: %+v, want %d left", a, test.window,
					test.back/conformance.Second, d, want)
			}
			for range 10 {
				k.take(l, 1)
			}
			if d := k.take(l, 1); test.isNew && (d.Allowed || d.RetryAfter > 11*test.window/10) {
				t.Errorf("%s of %v, used up by the right clock: %+v", a, test.window, d)
			}
		}
		if test.window != time.Hour {
			continue
		}
		for unit := ratelimit.Day; unit <= ratelimit.Year; unit++ {
			k, l := newKeys(), &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 10,
				Calendar: unit}
			jump := 2 * test.back / hour * conformance.Span(l) / 48
			k.Micro += jump
			k.take(l, 10)
			k.Micro -= jump
			if d := k.take(l, 10); d.Allowed != test.isNew {
				t.Errorf("calendar unit %d, %d s ahead: %+v", unit, jump/conformance.Second, d)
			}
		}
	}
}

// TestAClockThatIsRightAgain: if a row counts as new, its key is decided like another one from then
// on. Else it admits a full quota at most, and refuses no longer than the row may lie ahead and its
// charges take to go.
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
