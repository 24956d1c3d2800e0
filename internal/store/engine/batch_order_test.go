package engine_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// drawTwoLimits draws two limits, which often share their rows.
func (m *modelTest) drawTwoLimits(t *rapid.T) []*ratelimit.Limit {
	limits := []*ratelimit.Limit{conformance.DrawAnyLimit(t, m.newPrefix()),
		conformance.DrawAnyLimit(t, m.newPrefix())}
	if rapid.Bool().Draw(t, "the limits share their rows") {
		limits[1].Prefix, limits[1].Durable = limits[0].Prefix, limits[0].Durable
	}
	return limits
}

// In random batches of calls of one hit, each decision is the same as if the calls were decided one by one,
// in the order of arrival.
func TestBatchIsSequential(t *testing.T) {
	m := newModelTest(t)
	conformance.Check(t, 500, func(t *rapid.T) {
		m.startSchedule()
		limits := m.drawTwoLimits(t)
		for batches := rapid.IntRange(1, 3).Draw(t, "batches"); batches > 0; batches-- {
			m.moveClock(t, limits[0])
			var calls []*batch.Call
			for n := rapid.IntRange(1, 20).Draw(t, "calls"); n > 0; n-- {
				c := drawCall(t, limits)
				if c.Hits[0].Cost > 4 {
					c.Hits[0].Cost = 1 + c.Hits[0].Cost%4 // makes many costs equal
				}
				calls = append(calls, c)
			}
			m.checkBatch(t, calls)
		}
	})
}

// checkBatch decides calls as one batch in Postgres and in Go, and fails the test unless the decisions are
// equal.
func (m *modelTest) checkBatch(t failer, calls []*batch.Call) {
	m.db.readAfterEachRun(calls[len(calls)-1].Hits[0])
	wants := m.model.decideBatch(m.clock.Micro, calls)
	m.store.DecideBatch(calls)
	for i, c := range calls {
		for j := range c.Decisions {
			// Equal hits are decided together: the decision of the first hit already has the Reset after all
			// of them, and the decision of a refund also has their Remaining.
			if j < len(wants[i]) && c.Decisions[j].Allowed {
				wants[i][j].Reset = c.Decisions[j].Reset
				if c.Hits[j].Cost < 0 {
					wants[i][j].DecidedAt = c.Decisions[j].DecidedAt // may be the time after a later reset
				}
				if c.Hits[j].Cost < 0 && c.Decisions[j].Remaining <= c.Decisions[j].Quota {
					wants[i][j].Remaining = max(wants[i][j].Remaining, c.Decisions[j].Remaining)
				}
			}
		}
		what := fmt.Sprintf("call %d of %s: ", i, formatBatch(calls))
		requireEqual(t, what, m.clock.Micro, c.Hits[0], c, wants[i])
	}
}

// formatBatch formats the calls of a batch, one per line.
func formatBatch(calls []*batch.Call) string {
	text := ""
	for i, c := range calls {
		text += fmt.Sprintf("\n%d, reset %v:", i, c.Reset)
		for j, h := range c.Hits {
			text += fmt.Sprintf(" %s/%s %s cost %d peek %v", h.Limit.Prefix, h.Key, h.Limit.Algorithm, h.Cost,
				h.Peek)
			if j < len(c.Decisions) {
				text += fmt.Sprintf(" %v %d;", c.Decisions[j].Allowed, c.Decisions[j].Remaining)
			}
		}
	}
	return text + "\n"
}
