package algorithm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// charge is an admitted hit.
type charge struct{ cost, at, window int64 }

// drawCharge decides a random hit on the key "k", and reports whether it was charged.
func (k *keys) drawCharge(t *rapid.T, l *ratelimit.Limit) (charge, bool) {
	cost := conformance.DrawCost(t, l)
	d := k.take(l, cost)
	return charge{cost, d.DecidedAt, algorithm.WindowOf(l, d.DecidedAt, d.Reset.UnixMicro())}, d.Allowed
}

// remaining returns the remaining quota of the key "k", which is negative if the quota is overdrawn.
func (k *keys) remaining(l *ratelimit.Limit) int64 {
	free, _ := algorithm.Of(l).Peek(l, k.rows["p/k"], k.Micro)
	return free
}

// After a settlement, a row has the same remaining quota as a row that was charged the actual cost in the
// first place. With gcra, the settled row may have less, but never more, because gcra drains charges
// continuously. A settlement after the end of the charge's window changes nothing.
func TestSettlementEqualsActualCost(t *testing.T) {
	conformance.EachDefinition(t, 3000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		d := algorithm.Of(l)
		settled, once := newKeys(), newKeys()
		for n := rapid.IntRange(0, 3).Draw(t, "before"); n > 0; n-- {
			settled.Micro = min(settled.Micro+conformance.DrawAdvance(t, l, 0), conformance.MaxTime)
			settled.drawCharge(t, l)
		}
		if row := settled.rows["p/k"]; row != nil {
			copied := *row
			once.rows["p/k"] = &copied
		}
		// The clock of a charge may be behind the clock of the previous charge.
		latestBefore := settled.Micro
		settled.Micro -= rapid.SampledFrom([]int64{0, 0, 5000}).Draw(t, "behind")
		once.Micro = settled.Micro
		estimate := conformance.DrawCost(t, l)
		decided := settled.take(l, estimate)
		real := rapid.Int64Range(0, l.Capacity()).Draw(t, "real cost")
		if real == 0 && once.rows["p/k"] == nil {
			t.Skip("the request alone started the window")
		}
		isCharged := decided.Allowed && (real == 0 || once.take(l, real).Allowed)
		if !isCharged || name == "sliding_log" && real > estimate {
			t.Skip()
		}
		before := *settled.rows["p/k"]
		settled.Micro, once.Micro = latestBefore, latestBefore
		for n := rapid.IntRange(0, 3).Draw(t, "after"); n > 0; n-- {
			settled.Micro = min(settled.Micro+conformance.DrawAdvance(t, l, 0), conformance.MaxTime)
			once.Micro = settled.Micro
			cost := conformance.DrawCost(t, l)
			if settled.take(l, cost).Allowed != once.take(l, cost).Allowed {
				t.Skip()
			}
		}
		now := settled.Micro
		unsettled := *settled.rows["p/k"]
		d.Adjust(l, settled.rows["p/k"], now, estimate-real, decided.DecidedAt)
		if over := windowOver(l, &before, now, decided.DecidedAt); over {
			if free, reset := d.Peek(l, &unsettled, now); free != settled.remaining(l) {
				t.Fatalf("%+v: remaining until %d after the window and the settlement: got %d, want %d", *l,
					reset, settled.remaining(l), free)
			}
			return
		}
		got, want := settled.remaining(l), once.remaining(l)
		hasDrained := name == "gcra" && now > decided.DecidedAt
		if got > want || got < want && !hasDrained {
			t.Fatalf("%+v: estimate %d, actual cost %d, %d µs later: remaining: got %d, want %d", *l,
				estimate, real, now-decided.DecidedAt, got, want)
		}
	})
}

// windowOver reports whether the window of a charge at the time at is over, so that a settlement changes
// nothing. r is the row after the charge.
func windowOver(l *ratelimit.Limit, r *algorithm.Row, now, at int64) bool {
	w := l.Window.Microseconds()
	switch algorithm.Of(l).Name {
	case "fixed_window":
		return now >= r.Start+w
	case "sliding_window":
		return now >= r.Start+2*w
	case "calendar":
		return now >= r.Expires
	case "token_bucket":
		return now >= r.Refill+w
	case "sliding_log":
		return now >= at+w
	}
	return now-at >= (l.Capacity()*w+l.Events-1)/l.Events
}

// A settlement overdraws a window in full, and a bucket by at most a full quota. Afterwards, RetryAfter is
// the earliest time at which a cost passes, and the row does not expire before the full quota is back.
func TestSettlementKeepsWhatAWindowOwes(t *testing.T) {
	conformance.EachDefinition(t, 3000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		k := newKeys()
		charged, ok := k.drawCharge(t, l)
		if !ok || name == "sliding_log" {
			return
		}
		d, row := algorithm.Of(l), k.rows["p/k"]
		more := rapid.OneOf(rapid.Int64Range(1, l.Capacity()), rapid.Just(2*l.Capacity()),
			rapid.Just(int64(1)<<60)).Draw(t, "more")
		d.Adjust(l, row, k.Micro, -more, charged.at)
		free := k.remaining(l)
		// Very large buckets can be overdrawn by less, because calculations with twice the quota would
		// overflow.
		owed := 2 * float64(l.Capacity()) * float64(l.Window.Microseconds())
		large := l.Capacity() > 1<<51 || owed > 1<<61 || owed/float64(l.Events) > float64(horizon)/2
		want := l.Capacity() - charged.cost - more
		if name == "token_bucket" || name == "gcra" {
			want = max(-l.Capacity(), want)
		} else {
			large = false
		}
		if free != want && !large || free < want {
			t.Fatalf("%+v: remaining after the settlement: got %d, want %d", *l, free, want)
		}
		cost := conformance.DrawCost(t, l)
		for _, c := range []int64{cost, l.Capacity()} {
			if free >= c {
				continue
			}
			passes := d.Passes(l, row, k.Micro, c)
			for at, want := range map[int64]bool{passes: true, passes - 1: false} {
				left, _ := d.Peek(l, row, at)
				if at < conformance.MaxTime && (left >= c) != want {
					t.Fatalf("%+v: cost %d, which passes at %d: at %d got %d remaining, want enough %t", *l,
						c, passes, at, left, want)
				}
			}
		}
		_, reset := d.Peek(l, row, k.Micro)
		if full, _ := d.Peek(l, row, reset); reset < conformance.MaxTime && full != l.Capacity() &&
			name != "sliding_window" {
			t.Fatalf("%+v: remaining at Reset: got %d, want %d", *l, full, l.Capacity())
		}
		if row.Expires < min(reset, k.Micro+horizon) {
			t.Fatalf("%+v: the row expires %d µs before Reset, want not before", *l, reset-row.Expires)
		}
		d.Adjust(l, row, k.Micro, 2*l.Capacity(), 0)
		if left := k.remaining(l); left < min(l.Capacity(), free+2*l.Capacity()) {
			t.Fatalf("%+v: remaining after a refund of twice the quota: got %d, want at least %d", *l, left,
				min(l.Capacity(), free+2*l.Capacity()))
		}
	})
}
