package algorithm_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
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
				t.Fatalf("%+v after %+v: at %+d, cost %d: peek %+v, take %+v, want %v", *l, d, k.Micro-now, probe.cost, peeked, taken, probe.want)
			}
		}
	})
}

// TestRetryAfterOfSeveralHits: a request passes when the longest RetryAfter of its refusals
// has passed, and not before.
func TestRetryAfterOfSeveralHits(t *testing.T) {
	conformance.Check(t, 1500, func(t *rapid.T) {
		k := newKeys()
		limits := drawLimits(t)
		for hits := rapid.IntRange(1, 10).Draw(t, "hits"); hits > 0; hits-- {
			k.Micro += rapid.Int64Range(0, 1000).Draw(t, "advance")
			k.decide(drawRequest(t, limits, false)...)
		}
		hits := drawRequest(t, limits, false)
		longest := time.Duration(0)
		for _, d := range k.decide(hits...) {
			longest = max(longest, d.RetryAfter)
		}
		if longest == 0 || longest == ratelimit.Never {
			t.Skip()
		}
		now := k.Micro
		for _, probe := range []struct {
			at   int64
			want bool
		}{{now + longest.Microseconds() - 1, false}, {now + longest.Microseconds(), true}} {
			k.Micro = probe.at
			passed := true
			decisions := k.decide(hits...)
			for _, d := range decisions {
				passed = passed && d.Allowed
			}
			if passed != probe.want {
				t.Fatalf("%d µs later: %+v, want %v", k.Micro-now, decisions, probe.want)
			}
		}
	})
}
