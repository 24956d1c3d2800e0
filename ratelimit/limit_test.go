package ratelimit_test

import (
	"encoding/json"
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

// writtenLimit is a limit in a file of testdata. What a line leaves out is that of a valid limit.
type writtenLimit struct {
	ratelimit.Limit
	Algorithm, Window string
}

// Errors name the field, its value, and valid values.
func TestErrorsNameTheField(t *testing.T) {
	requireField := func(l *ratelimit.Limit, err error) {
		var field *ratelimit.FieldError
		if err != nil && (!errors.As(err, &field) || !strings.Contains(err.Error(), "must be")) {
			t.Errorf("%+v: error %v, want a FieldError that says what it must be", l, err)
		}
	}
	golden.ReplayLines(t, "testdata/limits.txt", func(t *testing.T, _, text string) string {
		w := writtenLimit{ratelimit.Limit{Prefix: "p", Events: 1}, "sliding_window", "1s"}
		err := json.Unmarshal([]byte(text), &w)
		l := &w.Limit
		if err == nil {
			l.Algorithm, err = ratelimit.ParseAlgorithm(w.Algorithm)
		}
		if err == nil {
			l.Window, err = time.ParseDuration(w.Window)
		}
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		err = l.Validate()
		requireField(l, err)
		return fmt.Sprint(err)
	})
	for _, l := range []*ratelimit.Limit{{Prefix: "\xff", Events: 1, Window: time.Second},
		{Prefix: "p", Events: 1, Window: time.Second, Algorithm: 6},
		{Prefix: "p", Events: 1, Window: time.Second, Lease: math.NaN()}} {
		if err := l.Validate(); err == nil {
			t.Errorf("%+v: no error, want one", l)
		} else {
			requireField(l, err)
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
