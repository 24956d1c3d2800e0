package algorithm_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// definitionNames returns the names of all definitions.
func definitionNames() []string {
	var names []string
	for _, d := range conformance.Definitions() {
		names = append(names, d.Name)
	}
	return names
}

// netCost returns the sum of a log's charges and refunds.
func netCost(log []entry) *big.Int {
	sum := new(big.Int)
	for _, e := range log {
		sum.Add(sum, big.NewInt(e.cost))
	}
	return sum
}

// loosestBound returns the bound of the cost in a period of time microseconds. After a change of the limit,
// the windows of the new limit start where those of the row did, so a part of a window counts as a whole one.
func loosestBound(l *ratelimit.Limit, time int64) *big.Int {
	window := l.Window.Microseconds()
	if l.Calendar != ratelimit.NoCalendar {
		window = 23 * 3600 * conformance.Second // no unit of the calendar is shorter
	}
	begun := (time + window - 1) / window
	if l.Algorithm == ratelimit.SlidingLog && time < window {
		begun = 0
	}
	bound := new(big.Int).Mul(big.NewInt(begun), big.NewInt(l.Events))
	return bound.Add(bound, big.NewInt(l.Capacity()))
}

// sendHits sends random hits under a limit and checks that the limit holds.
func sendHits(t *rapid.T, k *keys, l *ratelimit.Limit) {
	var log []entry
	retry := time.Duration(0)
	for n := rapid.IntRange(1, 8).Draw(t, "hits"); n > 0; n-- {
		k.Micro = min(k.Micro+conformance.DrawAdvance(t, l, retry), conformance.MaxTime)
		cost := conformance.DrawCost(t, l)
		d := k.take(l, cost)
		if d.Remaining > l.Capacity() || d.Quota != l.Capacity() {
			t.Fatalf("%+v: got %+v, want the limit's quota", *l, d)
		}
		if d.Allowed {
			log = append(log, entry{k.Micro, cost})
		}
		retry = d.RetryAfter
	}
	for i := range log {
		for j := i; j < len(log); j++ {
			if sum := netCost(log[i : j+1]); sum.Cmp(loosestBound(l, log[j].at-log[i].at)) > 0 {
				t.Fatalf("%+v: cost from entry %d to %d: got %v, want less: %v", *l, i, j, sum, log)
			}
		}
	}
}

// If the limit of a prefix changes from one algorithm to another and back, each limit is kept while it
// applies. The test has each pair of algorithms.
func TestChangingAlgorithmKeepsBothLimits(t *testing.T) {
	for _, from := range definitionNames() {
		for _, to := range definitionNames() {
			t.Run(from+"/"+to, func(t *testing.T) {
				conformance.Check(t, 60, func(t *rapid.T) {
					k := newKeys()
					a, b := conformance.DrawLimit(t, from, "p"), conformance.DrawLimit(t, to, "p")
					for phase := rapid.IntRange(2, 4).Draw(t, "phases"); phase > 0; phase-- {
						sendHits(t, k, a)
						a, b = b, a
					}
				})
			})
		}
	}
}

// If only the quota changes, windows and logs count earlier charges as if the quota had always been the new
// one. A bucket that was charged at the time of the change keeps its remaining quota, up to the new quota. A
// bucket that was charged earlier may lose the tokens of an incomplete window, if it now refills by whole
// windows.
func TestChangedQuotaCountsEarlierCharges(t *testing.T) {
	conformance.EachDefinition(t, 150, func(t *rapid.T, name string) {
		k := newKeys()
		l := conformance.DrawLimit(t, name, "p")
		var log []entry
		left := int64(0)
		for phase := rapid.IntRange(2, 4).Draw(t, "phases"); phase > 0; phase-- {
			charged := int64(0) // when l last admitted a hit in this phase
			for n := rapid.IntRange(1, 6).Draw(t, "hits"); n > 0; n-- {
				k.Micro = min(k.Micro+conformance.DrawAdvance(t, l, 0), conformance.MaxTime)
				cost := conformance.DrawCost(t, l)
				want := remaining(l, log, k.Micro).Cmp(big.NewRat(cost, 1)) >= 0
				d := k.take(l, cost)
				if d.Allowed {
					log, left, charged = append(log, entry{k.Micro, cost}), d.Remaining, k.Micro
				}
				if conformance.HasBurst(name) {
					continue
				}
				if d.Allowed != want {
					t.Fatalf("%+v, cost %d: got %+v, want allowed %t after %v", *l, cost, d, want, log)
				}
				if err := checkDecision(l, log, k.Micro, cost, d); err != nil {
					t.Fatalf("%+v, cost %d: %+v: %v after %v", *l, cost, d, err, log)
				}
			}
			changed := *l
			quota := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 2*l.Capacity())).Draw(t,
				"quota")
			if conformance.HasBurst(name) {
				changed.Burst = quota
			} else {
				changed.Events = quota
			}
			if changed.Validate() != nil {
				continue
			}
			alike := algorithm.Of(l) == algorithm.Of(&changed) // otherwise a part of a window may be refilled
			l = &changed
			after := k.peek(l, 1).Remaining
			least, most := int64(0), quota
			if conformance.HasBurst(name) && charged == k.Micro {
				least = min(left, quota)
				if alike {
					most = least
				}
			}
			if after < least || after > most {
				t.Fatalf("remaining after a change to the quota %d: got %d, want %d to %d", quota, after,
					least, most)
			}
			left = after
		}
	})
}
