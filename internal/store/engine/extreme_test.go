package engine_test

import (
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestExtremeLimits charges limits at the bounds of what is valid, around the moments that
// matter: SQL and Go agree.
func TestExtremeLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it; the test of the Go steps at the same bounds runs always")
	}
	b := newBench(t)
	for _, l := range conformance.ExtremeLimits(t) {
		l.Prefix, l.Durable = b.prefix(), l.Events == 1
		b.begin()
		ask := func(cost int64) ratelimit.Decision {
			return b.ask(t,
				ratelimit.Hit{Limit: l, Key: "k", Cost: cost})
		}
		peek := func() ratelimit.Decision {
			return b.ask(t,
				ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Peek: true})
		}
		if d := ask(l.Capacity()); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("%+v: the full quota at once: %+v", *l, d)
		}
		for _, cost := range []int64{1, l.Capacity(), l.Capacity() + 1, math.MaxInt64} {
			if d := ask(cost); d.Allowed || d.RetryAfter != ratelimit.Never && cost > l.Capacity() {
				t.Fatalf("%+v: cost %d of a quota that is used up: %+v", *l, cost, d)
			}
		}
		now := b.clock.Micro
		for _, cost := range []int64{1, l.Capacity()} {
			b.clock.Micro = now
			retry := now + ask(cost).RetryAfter.Microseconds()
			for _, at := range []int64{retry - 1, retry} {
				if at < latest {
					b.clock.Micro = at
					peek()
				}
			}
		}
		ask(-1)
		ask(min(2, l.Capacity()))
		ask(math.MinInt64)
		if d := peek(); d.Remaining != l.Capacity() {
			t.Fatalf("%+v: all is given back: %+v", *l, d)
		}
		ask(l.Capacity())
	}
}
