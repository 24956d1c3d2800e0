package algorithm_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestPeriods of the calendar follow one another, and begin when the clocks first show the
// day. Package postgres compares those of all time zones with the server's.
func TestPeriods(t *testing.T) {
	for _, test := range []struct {
		unit             ratelimit.Calendar
		zone             string
		now, start, ends string
	}{
		{ratelimit.Day, "", "2024-02-28T23:59:59.999999Z", "2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"},
		{ratelimit.Week, "", "2024-03-03T12:00:00Z", "2024-02-26T00:00:00Z", "2024-03-04T00:00:00Z"},
		{ratelimit.Week, "", "2024-03-04T00:00:00Z", "2024-03-04T00:00:00Z", "2024-03-11T00:00:00Z"},
		{ratelimit.Month, "", "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{ratelimit.Year, "Asia/Kathmandu", "2023-12-31T18:14:59Z", "2022-12-31T18:15:00Z",
			"2023-12-31T18:15:00Z"},
		{ratelimit.Year, "Asia/Kathmandu", "2023-12-31T18:15:00Z", "2023-12-31T18:15:00Z",
			"2024-12-31T18:15:00Z"},
		// Days of 23 and of 25 hours.
		{ratelimit.Day, "Europe/Berlin", "2024-03-31T12:00:00+02:00", "2024-03-31T00:00:00+01:00",
			"2024-04-01T00:00:00+02:00"},
		{ratelimit.Day, "Europe/Berlin", "2024-10-27T02:30:00+01:00", "2024-10-27T00:00:00+02:00",
			"2024-10-28T00:00:00+01:00"},
		{ratelimit.Month, "Europe/Berlin", "2024-10-31T12:00:00+01:00", "2024-10-01T00:00:00+02:00",
			"2024-11-01T00:00:00+01:00"},
		// The clocks skip midnight.
		{ratelimit.Day, "Africa/Cairo", "2024-04-26T12:00:00+03:00", "2024-04-26T01:00:00+03:00",
			"2024-04-27T00:00:00+03:00"},
		// The clocks are set back at midnight to before it, so there are two midnights.
		{ratelimit.Day, "Africa/Cairo", "2024-10-31T23:30:00+02:00", "2024-10-31T00:00:00+03:00",
			"2024-11-01T00:00:00+02:00"},
		{ratelimit.Day, "America/Havana", "2024-11-03T00:30:00-05:00", "2024-11-03T00:00:00-04:00",
			"2024-11-04T00:00:00-05:00"},
		// The clocks are set back at 00:01, when the next day has begun already.
		{ratelimit.Day, "America/St_Johns", "2010-11-06T23:30:00-03:30", "2010-11-07T00:00:00-02:30",
			"2010-11-08T00:00:00-03:30"},
		// A day that a zone skipped as a whole.
		{ratelimit.Day, "Pacific/Apia", "2011-12-31T12:00:00+14:00", "2011-12-31T00:00:00+14:00",
			"2012-01-01T00:00:00+14:00"},
	} {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Calendar: test.unit,
			Zone: test.zone, Events: 1}
		start, end := algorithm.Period(l, micro(t, test.now))
		if start != micro(t, test.start) || end != micro(t, test.ends) {
			t.Errorf("%s in %q: from %v to %v, want from %s to %s", test.now, test.zone,
				time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC(), test.start, test.ends)
		}
	}
}

func micro(t *testing.T, text string) int64 {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

// TestPeriodsLeaveNoGap: each moment is in one period.
func TestPeriodsLeaveNoGap(t *testing.T) {
	conformance.Check(t, 3000, func(t *rapid.T) {
		l := conformance.DrawLimit(t, "calendar", "p")
		now := rapid.Int64Range(0, latest).Draw(t, "now")
		start, end := algorithm.Period(l, now)
		if start > now || end <= now {
			t.Fatalf("%+v at %d: from %d to %d", *l, now, start, end)
		}
		for _, at := range []int64{start, end - 1, rapid.Int64Range(start, end-1).Draw(t, "at")} {
			if s, e := algorithm.Period(l, at); s != start || e != end {
				t.Fatalf("%+v at %d: from %d to %d, and at %d from %d to %d", *l, now, start, end, at, s, e)
			}
		}
		if next, _ := algorithm.Period(l, end); next != end {
			t.Fatalf("%+v: a period ends at %d, and the next begins at %d", *l, end, next)
		}
	})
}

// TestBillingPeriods begin on a day of their own, and on the last day of a month that does
// not have that day, also where the clocks change.
func TestBillingPeriods(t *testing.T) {
	for _, test := range []struct {
		unit   ratelimit.Calendar
		anchor string // a date
		zone   string
		starts []string // of periods that follow one another
	}{
		{ratelimit.Month, "2024-01-31", "", []string{"2023-01-31T00:00:00Z", "2023-02-28T00:00:00Z",
			"2023-03-31T00:00:00Z", "2023-04-30T00:00:00Z", "2023-05-31T00:00:00Z"}},
		{ratelimit.Month, "2023-01-31", "",
			[]string{"2024-01-31T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z"}},
		{ratelimit.Month, "2025-06-30", "",
			[]string{"2023-01-30T00:00:00Z", "2023-02-28T00:00:00Z", "2023-03-30T00:00:00Z"}},
		{ratelimit.Month, "2024-02-15", "",
			[]string{"2023-12-15T00:00:00Z", "2024-01-15T00:00:00Z", "2024-02-15T00:00:00Z"}},
		{ratelimit.Month, "2024-02-01", "", []string{"2023-12-01T00:00:00Z", "2024-01-01T00:00:00Z"}},
		{ratelimit.Month, "2024-01-31", "Europe/Berlin",
			[]string{"2024-02-29T00:00:00+01:00", "2024-03-31T00:00:00+01:00", "2024-04-30T00:00:00+02:00"}},
		{ratelimit.Month, "2024-10-27", "Europe/Berlin",
			[]string{"2024-09-27T00:00:00+02:00", "2024-10-27T00:00:00+02:00", "2024-11-27T00:00:00+01:00"}},
		// The clocks skip midnight of 26 April.
		{ratelimit.Month, "2020-01-26", "Africa/Cairo",
			[]string{"2024-03-26T00:00:00+02:00", "2024-04-26T01:00:00+03:00", "2024-05-26T00:00:00+03:00"}},
		{ratelimit.Year, "2024-02-29", "",
			[]string{"2023-02-28T00:00:00Z", "2024-02-29T00:00:00Z", "2025-02-28T00:00:00Z"}},
		{ratelimit.Year, "2021-10-07", "America/New_York",
			[]string{"2023-10-07T00:00:00-04:00", "2024-10-07T00:00:00-04:00"}},
	} {
		day, err := time.Parse(time.DateOnly, test.anchor)
		if err != nil {
			t.Fatal(err)
		}
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Calendar: test.unit,
			Zone: test.zone, Anchor: ratelimit.AnchorOn(test.unit, day), Events: 1}
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		for i := range test.starts[1:] {
			want, ends := micro(t, test.starts[i]), micro(t, test.starts[i+1])
			for _, now := range []int64{want, (want + ends) / 2, ends - 1} {
				if start, end := algorithm.Period(l, now); start != want || end != ends {
					t.Errorf("unit %d of %s in %q: from %v to %v, want from %s to %s", test.unit, test.anchor,
						test.zone, time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC(), test.starts[i],
						test.starts[i+1])
				}
			}
		}
	}
}
