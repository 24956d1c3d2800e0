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

// TestBounds checks, over whole schedules, the bound of each algorithm: how much can pass in any stretch of
// time. A refund within the stretch may pass again. In some schedules the clock is set back now and then: the
// latest time of the key's hits counts.
func TestBounds(t *testing.T) {
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
			if k.Micro > latest {
				break
			}
			cost := conformance.DrawCost(t, l)
			// a refund does not move the row's time
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
		if err := bounded(l, log); err != nil {
			t.Fatalf("%+v: %v in %v", *l, err, log)
		}
	})
}

// bounded checks a log against the bound of its algorithm.
func bounded(l *ratelimit.Limit, log []entry) error {
	switch {
	case l.Calendar != ratelimit.NoCalendar || l.Algorithm == ratelimit.SlidingWindow:
		// By the definition, at each hit.
		for i, e := range log {
			if e.cost > 0 && free(l, log[:i], e.at).Cmp(big.NewRat(e.cost, 1)) < 0 {
				return fmt.Errorf("hit %d does not fit the formula", i)
			}
		}
		return nil
	case l.Algorithm == ratelimit.FixedWindow:
		begun := 0
		for i, e := range log {
			if e.at-log[begun].at >= l.Window.Microseconds() || log[begun].cost < 0 {
				begun = i
			}
			if passed(log[begun:i+1]).Cmp(big.NewInt(l.Events)) > 0 {
				return fmt.Errorf("%v passed in the window from entry %d to %d",
					passed(log[begun:i+1]), begun, i)
			}
		}
		return nil
	}
	for j := range log {
		for i := 0; i <= j; i++ {
			if most := most(l, log[j].at-log[i].at); passed(log[i:j+1]).Cmp(most) > 0 {
				return fmt.Errorf("%v passed from entry %d to %d, at most %v may",
					passed(log[i:j+1]), i, j, most)
			}
		}
	}
	return nil
}

// most bounds the cost that may pass in a number of microseconds, both ends included.
func most(l *ratelimit.Limit, time int64) *big.Int {
	window, full := big.NewInt(l.Window.Microseconds()), big.NewInt(l.Capacity())
	gained := new(big.Int)
	switch algorithm.Of(l).Name {
	case "sliding_log":
		if time >= l.Window.Microseconds() {
			return big.NewInt(1 << 62) // shorter times bound this one
		}
	case "token_bucket":
		// Tokens come at the ends of windows. At most so many lie in the time.
		gained.Add(big.NewInt(time), new(big.Int).Sub(window, big.NewInt(1)))
		gained.Mul(gained.Quo(gained, window), big.NewInt(l.Events))
	case "gcra":
		gained.Mul(big.NewInt(time), big.NewInt(l.Events))
		gained.Quo(gained, window)
	}
	return gained.Add(gained, full)
}

// passed returns the sum of a log's charges and refunds.
func passed(log []entry) *big.Int {
	sum := new(big.Int)
	for _, e := range log {
		sum.Add(sum, big.NewInt(e.cost))
	}
	return sum
}
