package ratelimit_test

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestBounds checks, over whole schedules, the bound that each algorithm is
// known for: how much can pass in any stretch of time. What is given back within
// the stretch may pass again. In some schedules the clock is set back now and
// then: the time that counts is the latest at which the key had a hit.
func TestBounds(t *testing.T) {
	eachWay(t, 2000, func(t *rapid.T, way string) {
		c := &clock{now: 1_700_000_000 * second}
		store := ratelimit.NewMemory(0, c.read)
		l := drawOfWay(t, way, "p")
		backwards := rapid.Bool().Draw(t, "backwards")
		if backwards {
			store.KeepExpired() // a row that is gone knows no later time
		}
		type log struct {
			entries []entry
			latest  int64
		}
		logs := map[string]*log{"a": {}, "b": {}}
		retry := time.Duration(0)
		for n := rapid.IntRange(1, 40).Draw(t, "steps"); n > 0; n-- {
			c.now += drawAdvance(t, l, retry)
			if backwards && rapid.IntRange(0, 4).Draw(t, "set back") == 0 {
				c.now -= rapid.Int64Range(0, 5*second).Draw(t, "by")
			}
			if c.now > latest {
				break
			}
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			h := ratelimit.Hit{Limit: l, Key: key, Cost: rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, l.Capacity())).Draw(t, "cost")}
			switch rapid.IntRange(0, 15).Draw(t, "what") {
			case 0:
				if err := store.Reset(context.Background(), time.Second, []ratelimit.Hit{h}); err != nil {
					t.Fatal(err)
				}
				if err := bounded(l, logs[key].entries); err != nil {
					t.Fatalf("%+v: %v in %v", *l, err, logs[key].entries)
				}
				*logs[key] = log{}
				continue
			case 1:
				if !backwards { // or else it is given back at a time that the row never sees
					h.Cost = -h.Cost
				}
			}
			d := takeOne(t, store, h)
			retry = d.RetryAfter
			if d.Allowed {
				logs[key].latest = atLeast(logs[key].latest, c.now)
				logs[key].entries = append(logs[key].entries, entry{logs[key].latest, h.Cost})
			}
		}
		for _, log := range logs {
			if err := bounded(l, log.entries); err != nil {
				t.Fatalf("%+v: %v in %v", *l, err, log.entries)
			}
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
				return fmt.Errorf("%v passed in the window from entry %d to %d", passed(log[begun:i+1]), begun, i)
			}
		}
		return nil
	}
	for j := range log {
		for i := 0; i <= j; i++ {
			if most := most(l, log[j].at-log[i].at); passed(log[i:j+1]).Cmp(most) > 0 {
				return fmt.Errorf("%v passed from entry %d to %d, at most %v may", passed(log[i:j+1]), i, j, most)
			}
		}
	}
	return nil
}

// most is how much may pass in so many microseconds, both ends included.
func most(l *ratelimit.Limit, time int64) *big.Int {
	window, full := big.NewInt(l.Window.Microseconds()), big.NewInt(l.Capacity())
	gained := new(big.Int)
	switch l.Algorithm {
	case ratelimit.SlidingLog:
		if time >= l.Window.Microseconds() {
			return big.NewInt(1 << 62) // shorter stretches bound this one
		}
	case ratelimit.TokenBucket:
		// Tokens come at the ends of windows: so many lie in the stretch at most.
		gained.Add(big.NewInt(time), new(big.Int).Sub(window, big.NewInt(1)))
		gained.Mul(gained.Quo(gained, window), big.NewInt(l.Events))
	case ratelimit.GCRA:
		gained.Mul(big.NewInt(time), big.NewInt(l.Events))
		gained.Quo(gained, window)
	}
	return gained.Add(gained, full)
}

// passed is the sum of what a log charged and gave back.
func passed(log []entry) *big.Int {
	sum := new(big.Int)
	for _, e := range log {
		sum.Add(sum, big.NewInt(e.cost))
	}
	return sum
}

// TestSteadyClient sends, at half the rate of a limit, one hit after the other:
// none may be refused, whenever it begins and however it trembles.
func TestSteadyClient(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingLog} {
		t.Run(algorithm.String(), func(t *testing.T) {
			check(t, 300, func(t *rapid.T) {
				c := &clock{now: 1_700_000_000 * second}
				store := ratelimit.NewMemory(0, c.read)
				l := &ratelimit.Limit{Prefix: "p", Algorithm: algorithm, Events: rapid.Int64Range(1, 600).Draw(t, "events"),
					Window: time.Duration(rapid.Int64Range(1200, 100*second).Draw(t, "window")) * time.Microsecond}
				interval := 2 * l.Window.Microseconds() / l.Events
				begin := c.now
				for i := int64(0); i < 2*l.Events+20; i++ {
					// Late by up to a quarter of the interval, never for good.
					c.now = begin + i*interval + rapid.Int64Range(0, interval/4).Draw(t, "late")
					if d := takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); !d.Allowed {
						t.Fatalf("%+v: hit %d, at half the rate, was refused: %+v", *l, i, d)
					}
				}
			})
		})
	}
}

// TestUnlimitedClient sends as fast as it can for a long time: what passes comes
// to the rate, not to less.
func TestUnlimitedClient(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.GCRA} {
		c := &clock{now: 1_700_000_000 * second}
		store := ratelimit.NewMemory(0, c.read)
		l := &ratelimit.Limit{Prefix: "p", Algorithm: algorithm, Events: 7, Window: time.Second, Burst: 20}
		passed := int64(0)
		const windows = 1000
		for end := c.now + windows*second; c.now <= end; c.now += 9973 {
			if takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}).Allowed {
				passed++
			}
		}
		if passed < 20+7*windows-7 || passed > 20+7*windows {
			t.Errorf("%v: %d passed in %d windows, want 20 and 7 a window", algorithm, passed, windows)
		}
	}
}
