package algorithm_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// In every period of random schedules, the admitted cost less the refunds is within the bound of the
// algorithm. In some schedules, the clock is set back now and then. A hit at an earlier time than the key's
// latest hit then counts at the time of that hit.
func TestAdmittedCostStaysWithinBound(t *testing.T) {
	conformance.EachDefinition(t, 2000, func(t *rapid.T, name string) {
		k := newKeys()
		l := conformance.DrawLimit(t, name, "p")
		backwards := rapid.Bool().Draw(t, "backwards")
		k.forget = !backwards // a deleted row has no later time
		var log []entry
		last, retry := int64(0), time.Duration(0)
		for n := rapid.IntRange(1, 40).Draw(t, "steps"); n > 0; n-- {
			k.Micro += conformance.DrawAdvance(t, l, retry)
			if backwards && rapid.IntRange(0, 4).Draw(t, "set back") == 0 {
				k.Micro = max(k.Micro-rapid.Int64Range(0, 5*conformance.Second).Draw(t, "by"),
					last-10*conformance.Second)
			}
			if k.Micro > conformance.MaxTime {
				break
			}
			cost := conformance.DrawCost(t, l)
			// A refund does not change the latest time.
			if !backwards && rapid.IntRange(0, 15).Draw(t, "refund") == 0 {
				cost = -cost
			}
			d := k.take(l, cost)
			retry = d.RetryAfter
			if d.Allowed {
				last = max(last, k.Micro)
				log = append(log, entry{last, cost})
			}
		}
		if err := checkBound(l, log); err != nil {
			t.Fatalf("%+v: got %v, want a log within the bound: %v", *l, err, log)
		}
	})
}

// checkBound checks a log against the bound of the limit's algorithm.
func checkBound(l *ratelimit.Limit, log []entry) error {
	switch {
	case l.Calendar != ratelimit.NoCalendar || l.Algorithm == ratelimit.SlidingWindow:
		// The bound is the definition, at each hit.
		for first, e := range log {
			if e.cost > 0 && remaining(l, log[:first], e.at).Cmp(big.NewRat(e.cost, 1)) < 0 {
				return fmt.Errorf("hit %d does not fit the formula", first)
			}
		}
		return nil
	case l.Algorithm == ratelimit.FixedWindow:
		start := 0
		for first, e := range log {
			if e.at-log[start].at >= l.Window.Microseconds() || log[start].cost < 0 {
				start = first
			}
			if netCost(log[start:first+1]).Cmp(big.NewInt(l.Events)) > 0 {
				return fmt.Errorf("%v passed in the window from entry %d to %d",
					netCost(log[start:first+1]), start, first)
			}
		}
		return nil
	}
	for last := range log {
		for first := 0; first <= last; first++ {
			if limit := maxCost(l, log[last].at-log[first].at); netCost(log[first:last+1]).Cmp(limit) > 0 {
				return fmt.Errorf("%v passed from entry %d to %d, at most %v may",
					netCost(log[first:last+1]), first, last, limit)
			}
		}
	}
	return nil
}

// maxCost returns the bound of the cost in a period of time microseconds, including both ends.
func maxCost(l *ratelimit.Limit, time int64) *big.Int {
	window, full := big.NewInt(l.Window.Microseconds()), big.NewInt(l.Capacity())
	gained := new(big.Int)
	switch algorithm.Of(l).Name {
	case "sliding_log":
		if time >= l.Window.Microseconds() {
			return big.NewInt(1 << 62) // shorter times bound this one
		}
	case "token_bucket":
		// Tokens come at the ends of windows. This is the maximum number of ends in the period.
		gained.Add(big.NewInt(time), new(big.Int).Sub(window, big.NewInt(1)))
		gained.Mul(gained.Quo(gained, window), big.NewInt(l.Events))
	case "gcra":
		gained.Mul(big.NewInt(time), big.NewInt(l.Events))
		gained.Quo(gained, window)
	}
	return gained.Add(gained, full)
}

// netCost returns the sum of a log's charges and refunds.
func netCost(log []entry) *big.Int {
	sum := new(big.Int)
	for _, e := range log {
		sum.Add(sum, big.NewInt(e.cost))
	}
	return sum
}
