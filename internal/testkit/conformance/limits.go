package conformance

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Algorithms returns the algorithms that count in windows: all except InFlight, which testSlots tests.
func Algorithms() []ratelimit.Algorithm {
	return slices.DeleteFunc(ratelimit.Algorithms(),
		func(a ratelimit.Algorithm) bool { return a == ratelimit.InFlight })
}

// Definitions returns the definitions of Algorithms.
func Definitions() []*algorithm.Definition {
	return slices.DeleteFunc(algorithm.All(),
		func(d *algorithm.Definition) bool { return d.Name == ratelimit.InFlight.String() })
}

// Limits returns a limit of events per hour for each algorithm, and one of events per calendar year, which
// began half a year ago.
func Limits(prefix string, events int64) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, a := range Algorithms() {
		limits = append(limits, &ratelimit.Limit{Prefix: prefix + a.String(), Algorithm: a, Events: events,
			Window: time.Hour})
	}
	return append(limits, &ratelimit.Limit{
		Prefix: prefix + "calendar", Algorithm: ratelimit.FixedWindow, Events: events,
		Calendar: ratelimit.Year, TimeZone: "Asia/Kolkata",
		Anchor: ratelimit.AnchorOn(ratelimit.Year, time.Now().AddDate(0, -6, 0)),
	})
}

// Clock is a clock that a test sets. It is not safe for concurrent use.
type Clock struct{ Micro int64 } // microseconds since the Unix epoch

// Second is a second in microseconds, the unit of Clock.
const Second = int64(time.Second / time.Microsecond)

// NewClock returns a clock in November 2023.
func NewClock() *Clock { return &Clock{1_700_000_000 * Second} }

// Now returns the time that was set.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.Micro) }

// EachDefinition calls Check with a property for each definition, in a subtest.
func EachDefinition(t *testing.T, checks int, property func(t *rapid.T, name string)) {
	for _, d := range Definitions() {
		t.Run(d.Name, func(t *testing.T) {
			Check(t, checks, func(t *rapid.T) { property(t, d.Name) })
		})
	}
}

// drawAmount draws a number of events, often one of the largest.
var drawAmount = rapid.OneOf(rapid.Int64Range(1, ratelimit.MaxEvents),
	rapid.SampledFrom([]int64{1000, 1 << 52, ratelimit.MaxEvents - 1, ratelimit.MaxEvents}))

// maxWindow is the longest window in microseconds.
const maxWindow = int64(ratelimit.MaxWindow / time.Microsecond)

// DrawLimit draws a limit with the named definition, often with small numbers or the largest.
func DrawLimit(t *rapid.T, definition, prefix string) *ratelimit.Limit {
	for {
		l := &ratelimit.Limit{
			Prefix: prefix,
			Events: rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 12),
				drawAmount).Draw(t, "events"),
			Window: time.Duration(
				rapid.OneOf(rapid.Int64Range(1000, 1020), rapid.Int64Range(1000, 600*Second),
					rapid.Int64Range(1000, maxWindow), rapid.Just(maxWindow)).Draw(t,
					"window")) * time.Microsecond,
		}
		var err error
		if l.Algorithm, err = ratelimit.ParseAlgorithm(definition); err != nil {
			l.Algorithm = ratelimit.FixedWindow
			l.Calendar = ratelimit.Calendar(rapid.IntRange(1, 4).Draw(t, "unit"))
			l.TimeZone = rapid.SampledFrom([]string{"", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu",
				"Australia/Lord_Howe", "Africa/Cairo", "America/Havana"}).Draw(t, "zone")
			l.Window = 0
			if (l.Calendar == ratelimit.Month || l.Calendar == ratelimit.Year) &&
				rapid.Bool().Draw(t, "anchored") {
				l.Anchor = rapid.Int64Range(0, 1095).Draw(t, "anchor")
			}
		}
		switch {
		case l.Algorithm == ratelimit.SlidingLog:
			l.Events = 1 + l.Events%12
		case HasBurst(definition) && rapid.Bool().Draw(t, "has burst"):
			l.Burst = rapid.OneOf(rapid.Int64Range(1, 20), drawAmount).Draw(t, "burst")
		}
		if definition == "gcra" && rapid.Bool().Draw(t, "a bucket") {
			l.Algorithm = ratelimit.TokenBucket
			l.Events = max(2, l.Events)
			l.Burst = rapid.OneOf(rapid.Int64Range(1, min(20, l.Events-1)),
				rapid.Int64Range(1, l.Events-1)).Draw(t, "burst")
		}
		if l.Validate() == nil && algorithm.Of(l).Name == definition {
			return l
		}
	}
}

// MaxTime is the end of schedules, in microseconds since the Unix epoch. Until then, the zone files of both
// Go and Postgres have rules for all time zones, and a Postgres timestamp can hold the time.
const MaxTime = 4_000_000_000 * Second

// DrawAnyLimit draws a limit with any definition, in either table.
func DrawAnyLimit(t *rapid.T, prefix string) *ratelimit.Limit {
	l := DrawLimit(t, rapid.SampledFrom(Definitions()).Draw(t, "definition").Name, prefix)
	l.Durable = rapid.Bool().Draw(t, "durable")
	l.SynchronousCommit = l.Durable && rapid.IntRange(0, 3).Draw(t, "synchronous") == 0
	return l
}

// DrawSmallLimits draws two to four limits that a few hits of small cost exhaust.
func DrawSmallLimits(t *rapid.T, newPrefix func() string) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for n := rapid.IntRange(2, 4).Draw(t, "limits"); n > 0; n-- {
		l := DrawAnyLimit(t, newPrefix())
		l.Events, l.Burst = min(l.Events, 12), min(l.Burst, 12)
		limits = append(limits, l)
	}
	return limits
}

// DrawRequest draws a request of hits on different rows. refunds allows costs below 0.
func DrawRequest(t *rapid.T, limits []*ratelimit.Limit, refunds bool) []ratelimit.Hit {
	var hits []ratelimit.Hit
	rows := map[string]bool{}
	for _, l := range limits {
		key := rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key")
		name := fmt.Sprint(l.Prefix, l.Durable, key)
		if rows[name] || len(hits) > 0 && rapid.IntRange(0, 3).Draw(t, "skip") == 0 {
			continue
		}
		rows[name] = true
		h := ratelimit.Hit{Limit: l, Key: key,
			Cost: rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, l.Capacity()+1)).Draw(t, "cost")}
		switch rapid.IntRange(0, 12).Draw(t, "what") {
		case 0:
			h.Peek = true
		case 1:
			if refunds {
				h.Cost = rapid.SampledFrom([]int64{-h.Cost, math.MinInt64}).Draw(t, "refund")
			}
		}
		hits = append(hits, h)
	}
	return hits
}

// HasBurst reports whether limits of a definition may have a Burst.
func HasBurst(definition string) bool {
	return definition == "token_bucket" || definition == "gcra"
}

// DrawAdvance draws the microseconds by which a clock advances, often to a time at which decisions change.
func DrawAdvance(t *rapid.T, l *ratelimit.Limit, retryAfter time.Duration) int64 {
	w := Span(l)
	retry := retryAfter.Microseconds()
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, w/4), rapid.Int64Range(0, w/4),
		rapid.Int64Range(0, 3*w),
		rapid.SampledFrom([]int64{1, w - 1, w, w + 1, 2*w - 1, 2 * w, 7 * w}),
		rapid.Just(retry), rapid.Just(max(0, retry-1))).Draw(t, "advance")
}

// DrawCost draws a cost up to the full quota.
func DrawCost(t *rapid.T, l *ratelimit.Limit) int64 {
	full := l.Capacity()
	return rapid.OneOf(rapid.Int64Range(1, min(4, full)), rapid.Int64Range(1, full),
		rapid.Just(full)).Draw(t, "cost")
}

// Span returns the approximate length of a limit's window in microseconds.
func Span(l *ratelimit.Limit) int64 {
	if l.Calendar != ratelimit.NoCalendar {
		return []int64{ratelimit.Day: 1, ratelimit.Week: 7, ratelimit.Month: 30,
			ratelimit.Year: 365}[l.Calendar] * 24 * 3600 * Second
	}
	return l.Window.Microseconds()
}

// Fills returns the approximate time in which an empty quota becomes full, in microseconds, at least Span.
func Fills(l *ratelimit.Limit) int64 {
	windows := (l.Capacity() + l.Events - 1) / l.Events
	return Span(l) * min(windows, 1+ratelimit.MaxWindow.Microseconds()/Span(l))
}

// DrawJump draws the microseconds by which a clock jumps. Often, the jump ends just before or after the time
// from which the row counts as new.
func DrawJump(t *rapid.T, l *ratelimit.Limit) int64 {
	w, exact := Span(l), (l.Capacity()*min(Span(l), (1<<62)/l.Capacity())+l.Events-1)/l.Events
	jump := rapid.SampledFrom([]int64{w, w, Fills(l), exact, 48 * 3600 * Second}).Draw(t, "jump")
	return jump + rapid.SampledFrom([]int64{0, 10*Second - 1, 10 * Second, 10*Second + 1, 11 * Second,
		600 * Second}).Draw(t, "beyond")
}

// checking serializes tests that set the flag -rapid.checks, because the flag is global.
var checking sync.Mutex

// Check calls rapid.Check with a number of checks, unless the flag -rapid.checks sets another number. The
// number must be large enough to find each mutation of the code under test.
func Check(t *testing.T, checks int, property func(*rapid.T)) {
	t.Helper()
	checking.Lock()
	defer checking.Unlock()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "rapid.checks" })
	if !isSet {
		before := flag.Lookup("rapid.checks").Value.String()
		setChecks(t, strconv.Itoa(checks))
		defer setChecks(t, before)
	}
	rapid.Check(t, property)
}

func setChecks(t *testing.T, checks string) {
	if err := flag.Lookup("rapid.checks").Value.Set(checks); err != nil {
		t.Fatal(err)
	}
}

// Ahead reports whether a row is so far ahead of now that it counts as new: by more than ten seconds plus a
// window, or plus the time in which an empty burst becomes full.
func Ahead(l *ratelimit.Limit, r *algorithm.Row, now int64) bool {
	at, length := r.Start, Span(l)
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		length = r.Expires - r.Start
	case l.Algorithm == ratelimit.SlidingLog:
		at = 0
		if len(r.Hits) > 0 {
			at = r.Hits[len(r.Hits)-1]
		}
	case algorithm.Of(l).Name == "token_bucket":
		at, length = r.Refill, Fills(l)
	case algorithm.Of(l).Name == "gcra":
		at, length = r.Refill, (l.Capacity()*Span(l)+l.Events-1)/l.Events
	}
	return at-now > length+10*Second
}
