package engine_test

import (
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SQL and Go make the same decisions on limits with extreme values, around the times at which decisions
// change.
func TestExtremeLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it; a test of the Go steps with the same values always runs")
	}
	m := newModelTest(t)
	for _, l := range conformance.ExtremeLimits(t) {
		l.Prefix, l.Durable = m.newPrefix(), l.Events == 1
		m.startSchedule()
		take := func(cost int64) ratelimit.Decision {
			return m.checkHit(t, ratelimit.Hit{Limit: l, Key: "k", Cost: cost})
		}
		peek := func() ratelimit.Decision {
			return m.checkHit(t, ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Peek: true})
		}
		if d := take(l.Capacity()); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("%+v: the full quota in one hit: got %+v, want it allowed", *l, d)
		}
		for _, cost := range []int64{1, l.Capacity(), l.Capacity() + 1, math.MaxInt64} {
			if d := take(cost); d.Allowed || d.RetryAfter != ratelimit.Never && cost > l.Capacity() {
				t.Fatalf("%+v: cost %d of an empty quota: got %+v, want a refusal", *l, cost, d)
			}
		}
		now := m.clock.Micro
		for _, cost := range []int64{1, l.Capacity()} {
			m.clock.Micro = now
			retry := now + take(cost).RetryAfter.Microseconds()
			for _, at := range []int64{retry - 1, retry} {
				if at < maxTime {
					m.clock.Micro = at
					peek()
				}
			}
		}
		take(-1)
		take(min(2, l.Capacity()))
		take(math.MinInt64)
		if d := peek(); d.Remaining != l.Capacity() {
			t.Fatalf("%+v: after a refund of all: got %+v, want the full quota", *l, d)
		}
		take(l.Capacity())
	}
}
