package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// TestRetryAfterAndReset brings a row into a random state. Then a refused cost is refused one
// microsecond before its RetryAfter has passed, which is Reset, and passes when it has. Else more is left
// at Reset than one microsecond before: all, unless older hits leave first.
func TestRetryAfterAndReset(t *testing.T) {
	conformance.EachDefinition(t, 1000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		k := drawState(t, l)
		k.setBack(t)
		cost := conformance.DrawCost(t, l)
		d := k.take(l, cost)
		if d.RetryAfter.Microseconds() > 2*horizon || d.Reset.UnixMicro() > latest+horizon {
			t.Skip() // no clock shows this time
		}
		now := k.Micro
		if !d.Allowed && d.Reset.UnixMicro() != now+d.RetryAfter.Microseconds() {
			t.Fatalf("%+v: %+v at %d", *l, d, now)
		}
		byParts := name == "sliding_window" || name == "sliding_log"
		for _, probe := range []struct {
			at, cost int64
			want     bool
			due      bool
		}{
			{now + d.RetryAfter.Microseconds() - 1, cost, false, !d.Allowed},
			{now + d.RetryAfter.Microseconds(), cost, true, !d.Allowed},
			{d.Reset.UnixMicro() - 1, l.Capacity(), false, d.Reset.UnixMicro() > now && d.Allowed},
			{d.Reset.UnixMicro(), l.Capacity(), true, d.Allowed && !byParts},
		} {
			if !probe.due {
				continue
			}
			k.Micro = probe.at
			peeked := k.peek(l, probe.cost)
			if taken := k.take(l, probe.cost); taken.Allowed != probe.want || peeked.Allowed != probe.want {
				t.Fatalf("%+v after %+v: at %+d, cost %d: peek %+v, take %+v, want %v", *l, d, k.Micro-now,
					probe.cost, peeked, taken, probe.want)
			}
		}
	})
}
