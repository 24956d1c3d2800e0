package engine_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settlementOf returns a settlement that refunds units of an allowed hit, or charges them if units is below
// 0.
func settlementOf(h ratelimit.Hit, d ratelimit.Decision, units int64) *batch.Charge {
	return &batch.Charge{Limit: h.Limit, Key: h.StoredKey(), Charged: units, DecidedAt: d.DecidedAt,
		Reset: d.Reset.UnixMicro(), Source: d.Source}
}

// In random schedules of hits and settlements, one by one, the SQL statements and the Go steps make the same
// decisions and rows. The statement of settlements also refunds units of leases. Such a refund names the time
// of its charge (claim), because the row may have started a later window since then.
func TestSQLAndGoStepsAreEqual(t *testing.T) {
	t.Parallel()
	m := newModelTest(t)
	type charge struct {
		hit      ratelimit.Hit
		decision ratelimit.Decision
	}
	conformance.Check(t, 3000, func(t *rapid.T) {
		m.startSchedule()
		limits := m.drawTwoLimits(t)
		var charges []charge
		for n := rapid.IntRange(1, 12).Draw(t, "steps"); n > 0; n-- {
			m.moveClock(t, limits[0])
			if len(charges) == 0 || rapid.Bool().Draw(t, "hit") {
				c := drawCall(t, limits)
				h := c.Hits[0]
				if d := m.checkCall(t, c); d.Allowed && h.Cost > 0 && !h.Peek {
					charges = append(charges, charge{h, d})
				}
				continue
			}
			one := rapid.SampledFrom(charges).Draw(t, "charge")
			quota := one.hit.Limit.Capacity()
			back := rapid.OneOf(rapid.Int64Range(1, one.hit.Cost), rapid.Int64Range(-quota, -1),
				rapid.SampledFrom([]int64{-1, -2 * quota, -1 << 60, 1 << 60, 0})).Draw(t, "back")
			row, window, claim := m.model.row(one.hit), conformance.Span(one.hit.Limit),
				one.decision.DecidedAt
			if rapid.Bool().Draw(t, "of a lease") {
				claim = rapid.SampledFrom([]int64{row.Start, row.Refill, m.clock.Micro}).Draw(t, "claim")
				claim = max(1,
					claim+rapid.SampledFrom([]int64{0, window, -window}).Draw(t, "beside the claim"))
			}
			settlement := settlementOf(one.hit, one.decision, back)
			settlement.DecidedAt = claim
			m.db.readAfterEachRun(one.hit)
			m.store.AddSettlement(settlement)
			m.store.DecideBatch([]*batch.Call{newCall(false)})
			before := formatRow(row)
			algorithm.Of(one.hit.Limit).Adjust(one.hit.Limit, row, m.clock.Micro, back, claim)
			if got, want := m.db.result(t), formatRow(row); got != want {
				t.Fatalf("hit %+v, limit %+v, refund %d, claim %d, time %d:\n row %s\n got %s\nwant %s",
					one.hit, *one.hit.Limit, back, claim, m.clock.Micro, before, got, want)
			}
		}
	})
}

// A settlement changes the row, and does not end the lease.
func TestSettlementKeepsLease(t *testing.T) {
	s := newTestDB(t)
	store, other := s.openEngine(engine.Options{LeaseHorizon: time.Minute}), s.openEngine(bareOptions)
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 10000, Window: time.Hour,
		Lease: 0.5}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	var leased ratelimit.Decision
	passed := int64(0)
	await.Within(t, testTimeout, "a lease", func() bool {
		leased = takeOne(t, store, h)
		passed++
		return leased.Source == ratelimit.FromLease
	})
	left := func() int64 { return remaining(t, other, h) }
	before := left()
	store.Adjust(settlementOf(h, leased, -4000))
	await.Within(t, testTimeout, "the charge", func() bool { return left() <= before-4000 })
	if d := takeOne(t, store, h); d.Source != ratelimit.FromLease {
		t.Errorf("got %+v, want it from the lease", d)
	}
	store.Adjust(settlementOf(h, leased, 1))
	await.Within(t, testTimeout, "the settlements",
		func() bool { settled := store.Stats()[engine.Settled]; return settled == 2 })
	if units := store.Stats()[engine.LeasedUnits]; units == 0 {
		t.Error("LeasedUnits is 0 after the settlements, want units")
	}
	store.Close() // refunds the units
	if got, want := left(), 10000-(passed+1)-4000+1; got != want {
		t.Errorf("%d units are left, want %d", got, want)
	}
}
