package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ways are the ways to count: each Algorithm, and FixedWindow on the calendar.
var ways = []string{"sliding_window", "fixed_window", "token_bucket", "sliding_log", "gcra", "calendar"}

// eachWay runs a property for each way to count.
func eachWay(t *testing.T, checks int, property func(t *rapid.T, way string)) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			check(t, checks, func(t *rapid.T) { property(t, way) })
		})
	}
}

// drawOfWay draws a limit of one way to count, often small.
func drawOfWay(t *rapid.T, way, prefix string) *ratelimit.Limit {
	for {
		l := &ratelimit.Limit{
			Prefix: prefix,
			Events: rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 12), rapid.Int64Range(1, ratelimit.MaxEvents)).Draw(t, "events"),
			Window: time.Duration(rapid.OneOf(rapid.Int64Range(1000, 1020), rapid.Int64Range(1000, 600*second),
				rapid.Int64Range(1000, int64(ratelimit.MaxWindow/time.Microsecond))).Draw(t, "window")) * time.Microsecond,
		}
		var err error
		if l.Algorithm, err = ratelimit.ParseAlgorithm(way); err != nil {
			l.Algorithm = ratelimit.FixedWindow
			l.Calendar = ratelimit.Calendar(rapid.IntRange(1, 4).Draw(t, "unit"))
			l.Zone = rapid.SampledFrom([]string{"", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana"}).Draw(t, "zone")
			l.Window = 0
		}
		switch {
		case l.Algorithm == ratelimit.SlidingLog:
			l.Events = 1 + l.Events%12
		case (way == "token_bucket" || way == "gcra") && rapid.Bool().Draw(t, "has burst"):
			l.Burst = rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, ratelimit.MaxEvents)).Draw(t, "burst")
		}
		if l.Validate() == nil {
			return l
		}
	}
}

// drawAdvance draws how far the clock goes on: often to where something changes.
func drawAdvance(t *rapid.T, l *ratelimit.Limit, retry time.Duration) int64 {
	w := span(l)
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, w/4), rapid.Int64Range(0, w/4), rapid.Int64Range(0, 3*w),
		rapid.SampledFrom([]int64{1, w - 1, w, w + 1, 2*w - 1, 2 * w, 7 * w}),
		rapid.Just(atLeast(0, retry.Microseconds())), rapid.Just(atLeast(0, retry.Microseconds()-1))).Draw(t, "advance")
}

// latest is when schedules end: a Postgres timestamp holds it, and the calendar
// of both sides is known.
const latest = 4_000_000_000 * second

// TestDefinitions runs random schedules against a Memory store and compares each
// answer with the oracle: what is refused and what is admitted, what remains,
// when it would pass and when the quota is full.
func TestDefinitions(t *testing.T) {
	eachWay(t, 2000, func(t *rapid.T, way string) {
		c := &clock{now: 1_700_000_000*second + rapid.Int64Range(0, 400*24*3600*second).Draw(t, "begin")}
		store := ratelimit.NewMemory(0, c.read)
		if way == "token_bucket" {
			// A bucket that was forgotten when it was full is refilled from its
			// next hit on: both conform, this makes it one.
			store.KeepExpired()
		}
		l := drawOfWay(t, way, "p")
		logs := map[string][]entry{}
		retry := time.Duration(0)
		for n := rapid.IntRange(1, 25).Draw(t, "steps"); n > 0; n-- {
			c.now += drawAdvance(t, l, retry)
			if c.now > latest {
				return
			}
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			h := ratelimit.Hit{Limit: l, Key: key}
			switch rapid.IntRange(0, 19).Draw(t, "what") {
			case 0:
				if err := store.Reset(context.Background(), time.Second, []ratelimit.Hit{h}); err != nil {
					t.Fatal(err)
				}
				logs[key] = nil
			case 1, 2:
				h.Cost = -rapid.OneOf(rapid.Int64Range(1, 5), rapid.Int64Range(1, l.Capacity())).Draw(t, "refund")
			case 3, 4:
				h.Peek = true
				fallthrough
			default:
				h.Cost = rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, l.Capacity()), rapid.Just(l.Capacity()), rapid.Just(l.Capacity()+1)).Draw(t, "cost")
			}
			before := free(l, logs[key], c.now)
			d := takeOne(t, store, h)
			wantAllowed := h.Cost < 0 || before.Cmp(big.NewRat(h.Cost, 1)) >= 0
			if h.Cost == 0 {
				wantAllowed = before.Sign() >= 0
			}
			if d.Allowed != wantAllowed {
				t.Fatalf("%+v at %d, cost %d with %s free: allowed %v", *l, c.now, h.Cost, before.FloatString(6), d.Allowed)
			}
			if d.Allowed && h.Cost != 0 && !h.Peek {
				logs[key] = append(logs[key], entry{c.now, h.Cost})
			}
			if err := agrees(l, logs[key], c.now, h, d); err != nil {
				t.Fatalf("%+v at %d, %+v of log %v: %v", *l, c.now, d, logs[key], err)
			}
			retry = d.RetryAfter
		}
	})
}

// takeOne asks a store about one hit.
func takeOne(t failer, store ratelimit.Store, h ratelimit.Hit) ratelimit.Decision {
	d := make([]ratelimit.Decision, 1)
	if err := store.Take(context.Background(), 10*time.Second, []ratelimit.Hit{h}, d); err != nil {
		t.Fatal(err)
	}
	return d[0]
}

// agrees compares what a decision says besides Allowed with the oracle.
func agrees(l *ratelimit.Limit, log []entry, now int64, h ratelimit.Hit, d ratelimit.Decision) error {
	fits := func(cost, at int64) bool { return free(l, log, at).Cmp(big.NewRat(cost, 1)) >= 0 }
	full := l.Capacity()
	if want := remaining(l, log, now); d.Remaining != want || d.Limit != full {
		return fmt.Errorf("%d of %d remain, want %d of %d", d.Remaining, d.Limit, want, full)
	}
	reset, retry := d.Reset.UnixMicro(), now+d.RetryAfter.Microseconds()
	switch {
	case reset < now:
		return fmt.Errorf("Reset is %d", reset)
	case !fits(full, reset) && reset < 1<<61: // beyond is never
		return fmt.Errorf("at Reset %d the full quota is not back", reset)
	case reset > now && fits(full, reset-1):
		return fmt.Errorf("the full quota is back before Reset %d", reset)
	case d.Allowed && retry != now:
		return fmt.Errorf("allowed, and to be tried again after %v", d.RetryAfter)
	case d.Allowed:
	case h.Cost > full:
		if d.RetryAfter != ratelimit.Never {
			return fmt.Errorf("it can never pass, but after %v", d.RetryAfter)
		}
	case retry <= now || fits(h.Cost, retry-1):
		return fmt.Errorf("it passes before %v are over", d.RetryAfter)
	case !fits(h.Cost, retry) && d.RetryAfter < math.MaxInt64: // a Duration holds 292 years
		return fmt.Errorf("it does not pass after %v", d.RetryAfter)
	}
	return nil
}

// horizon is a hundred years in microseconds.
const horizon = int64(ratelimit.MaxWindow / time.Microsecond)
