package engine_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// drawSmallLimits draws limits with small quotas. Two of them may share their rows.
func (m *modelTest) drawSmallLimits(t *rapid.T) []*ratelimit.Limit {
	limits := conformance.DrawSmallLimits(t, m.newPrefix)
	if rapid.IntRange(0, 3).Draw(t, "two limits share their rows") == 0 {
		limits[1].Prefix, limits[1].Durable = limits[0].Prefix, limits[0].Durable
	}
	return limits
}

// In random batches of requests on several limits, each decision is the same as if the Go steps decided the
// requests one after the other. If two limits share rows that the store decides in any order, the test only
// checks that each hit gets a decision.
func TestSeveralLimitsAreAllOrNothing(t *testing.T) {
	m := newModelTest(t)
	conformance.Check(t, 500, func(t *rapid.T) {
		m.startSchedule()
		limits := m.drawSmallLimits(t)
		sharesRows := limits[0].Prefix == limits[1].Prefix &&
			(algorithm.Of(limits[0]) != algorithm.Of(limits[1]) || limits[0].Calendar != ratelimit.NoCalendar)
		for batches := rapid.IntRange(1, 4).Draw(t, "batches"); batches > 0; batches-- {
			m.moveClock(t, limits[0])
			refunds := rapid.Bool().Draw(t, "refunds")
			var calls []*batch.Call
			for n := rapid.IntRange(1, 10).Draw(t, "requests"); n > 0; n-- {
				reset := refunds && rapid.IntRange(0, 15).Draw(t, "reset") == 0
				calls = append(calls, newCall(reset, conformance.DrawRequest(t, limits, refunds)...))
			}
			if !sharesRows {
				m.checkBatch(t, calls)
				continue
			}
			// The store decides each such request separately, in any order.
			m.store.DecideBatch(calls)
			for _, c := range calls {
				if c.Err != nil || len(c.Decisions) != len(c.Hits) && !c.Reset {
					t.Fatalf("%+v: got %v, %+v; want a decision for each hit", c.Hits, c.Err, c.Decisions)
				}
			}
			return
		}
	})
	if m.store.Stats()[engine.RolledBack] == 0 {
		t.Error("RolledBack is 0, want refused requests of batches")
	}
}
