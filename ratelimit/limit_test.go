package ratelimit_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ParseRate returns the rate of a valid text, and a FieldError that quotes any other text.
func TestParseRateReturnsRateOrFieldError(t *testing.T) {
	golden.ReplayLines(t, "testdata/rates.txt", func(t *testing.T, _, text string) string {
		if unquoted, err := strconv.Unquote(text); err == nil {
			text = unquoted
		}
		got, err := ratelimit.ParseRate(text)
		var field *ratelimit.FieldError
		if errors.As(err, &field) && field.Field == "limit" && field.Value == text {
			return "error"
		}
		return fmt.Sprintf("%+v %v", got, err)
	})
}

// onCalendar puts a limit on the calendar.
func onCalendar(c ratelimit.Calendar, timeZone string, anchor int64) func(l *ratelimit.Limit) {
	return func(l *ratelimit.Limit) {
		l.Algorithm, l.Calendar, l.Window = ratelimit.FixedWindow, c, 0
		l.TimeZone, l.Anchor = timeZone, anchor
	}
}

// gcraWindow is the window in which GCRA allows at most 1<<42 events.
const gcraWindow = 1 << 20 * time.Microsecond

// asGCRA makes a limit one of GCRA.
func asGCRA(events int64, window time.Duration, burst int64) func(l *ratelimit.Limit) {
	return func(l *ratelimit.Limit) {
		l.Algorithm, l.Events, l.Window, l.Burst = ratelimit.GCRA, events, window, burst
	}
}

// wrongLimits lists changes that make a valid limit invalid, each with the start of its error.
var wrongLimits = []struct {
	change func(l *ratelimit.Limit)
	want   string
}{
	{func(l *ratelimit.Limit) { l.Prefix = "" }, "prefix: missing: must be a name of 1 to 255 bytes"},
	{func(l *ratelimit.Limit) { l.Prefix = strings.Repeat("p", 256) }, "prefix: "},
	{func(l *ratelimit.Limit) { l.Prefix = "a\x00b" }, `prefix: "a\x00b": must be`},
	{func(l *ratelimit.Limit) { l.Prefix = "\xff" }, `prefix: "\xff": must be`},
	{func(l *ratelimit.Limit) { l.CountedAs = "a\x00b" }, `counted_as: "a\x00b": must be`},
	{func(l *ratelimit.Limit) { l.Algorithm = 6 },
		`algorithm: "Algorithm(6)": must be one of sliding_window, fixed_window, token_bucket, ` +
			`sliding_log, gcra, in_flight`},
	{func(l *ratelimit.Limit) { l.Algorithm = ratelimit.InFlight }, `window: "1s": must be left out`},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Window, l.Events = ratelimit.InFlight, 0, 1001 },
		`events: "1001": must be at most 1000 for in_flight`},
	{func(l *ratelimit.Limit) { l.Events = 0 }, `events: "0": must be a whole number from 1`},
	{func(l *ratelimit.Limit) { l.Events = -1 }, `events: "-1": must be a whole number from 1`},
	{func(l *ratelimit.Limit) { l.Events = ratelimit.MaxEvents + 1 },
		`events: "9007199254740993": must be a whole number from 1`},
	{func(l *ratelimit.Limit) { l.Window = 0 }, `window: "0s": must be from 1ms`},
	{func(l *ratelimit.Limit) { l.Window = time.Millisecond - time.Microsecond },
		`window: "999µs": must be from 1ms`},
	{func(l *ratelimit.Limit) { l.Window = ratelimit.MaxWindow + time.Microsecond },
		`window: "876600h0m0.000001s": must be from 1ms`},
	{func(l *ratelimit.Limit) { l.Window += time.Nanosecond },
		`window: "1.000000001s": must be from 1ms`},
	{func(l *ratelimit.Limit) { l.Burst = 2 }, "burst: "},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Burst = ratelimit.TokenBucket, -1 },
		`burst: "-1": must be`},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Burst = ratelimit.TokenBucket, ratelimit.MaxEvents+1 },
		`burst: "9007199254740993": must be`},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Events = ratelimit.SlidingLog, 1001 },
		`events: "1001": must be at most 1000 for sliding_log`},
	{asGCRA(ratelimit.MaxEvents, time.Hour, 0), "events: "},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Lease = ratelimit.GCRA, 0.05 },
		`lease: "0.05": must be left out for gcra`},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Lease = ratelimit.SlidingLog, 0.05 },
		`lease: "0.05": must be left out for sliding_log`},
	{func(l *ratelimit.Limit) { l.Lease = ratelimit.MinLease - 0.0001 }, "lease: "},
	{func(l *ratelimit.Limit) { l.Lease = ratelimit.MaxLease + 0.01 }, "lease: "},
	{func(l *ratelimit.Limit) { l.Lease = math.NaN() }, "lease: "},
	{func(l *ratelimit.Limit) {
		l.Algorithm, l.Calendar, l.Window, l.Lease = ratelimit.FixedWindow, ratelimit.Day, 0, 0.05
	}, "lease: "},
	{asGCRA(1, ratelimit.MaxWindow, 2), "burst: "},
	{func(l *ratelimit.Limit) { l.Calendar, l.Window = ratelimit.Day, 0 }, "algorithm: "},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Calendar = ratelimit.FixedWindow, ratelimit.Day },
		`window: "1s": must be 0`},
	{func(l *ratelimit.Limit) { l.Algorithm, l.Calendar, l.Window = ratelimit.FixedWindow, 5, 0 },
		"calendar: "},
	{func(l *ratelimit.Limit) { l.TimeZone = "UTC" }, `zone: "UTC": must be left out`},
	{asGCRA(1, ratelimit.MaxWindow/4+time.Microsecond, 4), "burst: "},
	{asGCRA(1<<42+1, gcraWindow, 0), `events: "4398046511105 in 1.048576s": must be smaller`},
	{asGCRA(1<<42, gcraWindow, 1<<42+1), `events: "4398046511105 in 1.048576s": must be smaller`},
	{asGCRA(1<<42+1, gcraWindow, 1), "events: "},
	{onCalendar(ratelimit.Day, "Mars/Base", 0), `zone: "Mars/Base": must be`},
	{onCalendar(ratelimit.Day, "Local", 0), `zone: "Local": must be`},
	{onCalendar(ratelimit.Day, "localtime", 0), `zone: "localtime": must be`},
	{onCalendar(ratelimit.Day, "CET", 0), `zone: "CET": must be Europe/Brussels, the name`},
	{func(l *ratelimit.Limit) { l.Anchor = 30 }, `anchor: "30": must be`},
	{onCalendar(ratelimit.Week, "", 3), `anchor: "3": must be`},
	{onCalendar(ratelimit.Month, "", -1), `anchor: "-1": must be`},
	{onCalendar(ratelimit.Year, "", 1096), `anchor: "1096": must be`},
}

// Errors name the field, its value, and valid values.
func TestErrorsNameTheField(t *testing.T) {
	good := ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Second}
	valid := []func(l *ratelimit.Limit){asGCRA(1, ratelimit.MaxWindow/4, 4), asGCRA(1<<42, gcraWindow, 0)}
	for _, lease := range []float64{0, ratelimit.MinLease, ratelimit.MaxLease} {
		for a := ratelimit.SlidingWindow; a <= ratelimit.TokenBucket; a++ {
			valid = append(valid, func(l *ratelimit.Limit) { l.Algorithm, l.Lease = a, lease })
		}
	}
	for _, change := range valid {
		l := good
		change(&l)
		if err := l.Validate(); err != nil {
			t.Errorf("%+v: error %v, want none", l, err)
		}
	}
	for _, test := range wrongLimits {
		l := good
		test.change(&l)
		err := l.Validate()
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || !strings.HasPrefix(err.Error(), test.want) ||
			!strings.Contains(err.Error(), "must be") {
			t.Errorf("%+v: error %v, want %s …", l, err, test.want)
		}
	}
}

// Two limits are equal if they make the same decisions on a row. Prefix, CountedAs and Durable only select
// the row, so limits that differ in them are equal.
func TestEqualLimitsDecideTheSame(t *testing.T) {
	base := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 5, Window: time.Second}
	for _, test := range []struct {
		change func(l *ratelimit.Limit)
		equal  bool
	}{
		{func(l *ratelimit.Limit) {}, true},
		{func(l *ratelimit.Limit) { l.Prefix, l.CountedAs, l.Durable = "q", "r", true }, true},
		{func(l *ratelimit.Limit) { l.Burst = 5 }, true},
		{func(l *ratelimit.Limit) { l.Burst = 6 }, false},
		{func(l *ratelimit.Limit) { l.Algorithm = ratelimit.GCRA }, false},
		{func(l *ratelimit.Limit) { l.Events, l.Burst = 6, 5 }, false},
		{func(l *ratelimit.Limit) { l.Window++ }, false},
		{func(l *ratelimit.Limit) { l.Calendar = ratelimit.Day }, false},
		{func(l *ratelimit.Limit) { l.TimeZone = "UTC" }, false},
		{func(l *ratelimit.Limit) { l.Anchor = 30 }, false},
		{func(l *ratelimit.Limit) { l.SynchronousCommit = true }, false},
	} {
		l := base
		test.change(&l)
		if l.Equal(&base) != test.equal || base.Equal(&l) != test.equal {
			t.Errorf("%+v equals %+v: want %v", l, base, test.equal)
		}
	}
}

// AnchorOn returns the same valid anchor for all days on which the same windows start, and 0 for a calendar
// without anchors.
func TestAnchorIsEqualForEqualWindows(t *testing.T) {
	first := time.Date(2023, 1, 1, 23, 59, 0, 0, time.FixedZone("", 14*3600))
	for day := first; day.Year() < 2025; day = day.AddDate(0, 0, 1) {
		for calendar, windows := range map[ratelimit.Calendar]string{ratelimit.Month: "02",
			ratelimit.Year: "01-02"} {
			anchor := ratelimit.AnchorOn(calendar, day)
			l := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1, Calendar: calendar,
				Anchor: anchor}
			if err := l.Validate(); err != nil {
				t.Fatalf("Validate with the anchor of %v: error %v, want none", day, err)
			}
			if got := time.Unix(anchor*24*3600, 0).UTC(); got.Format(windows) != day.Format(windows) {
				t.Errorf("the anchor of %v is %v, want a day of the same windows", day, got)
			}
			if again := ratelimit.AnchorOn(calendar, time.Unix(anchor*24*3600, 0).UTC()); again != anchor {
				t.Errorf("AnchorOn(%d) = %d for the anchor's own day, want %d", calendar, again, anchor)
			}
		}
		for _, calendar := range []ratelimit.Calendar{ratelimit.NoCalendar, ratelimit.Day, ratelimit.Week} {
			if anchor := ratelimit.AnchorOn(calendar, day); anchor != 0 {
				t.Errorf("%v: the anchor is %d, want 0", calendar, anchor)
			}
		}
	}
}
