package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestAlgorithmNames(t *testing.T) {
	for name, want := range map[string]ratelimit.Algorithm{
		"": ratelimit.SlidingWindow, "sliding_window": ratelimit.SlidingWindow, "fixed_window": ratelimit.FixedWindow,
		"token_bucket": ratelimit.TokenBucket, "sliding_log": ratelimit.SlidingLog, "gcra": ratelimit.GCRA,
	} {
		got, err := ratelimit.ParseAlgorithm(name)
		if err != nil || got != want || name != "" && got.String() != name {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"GCRA", "gcra ", "leaky_bucket"} {
		if _, err := ratelimit.ParseAlgorithm(name); err == nil || !strings.Contains(err.Error(), "algorithm: ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestParseRate(t *testing.T) {
	day := 24 * time.Hour
	for text, want := range map[string]ratelimit.Rate{
		"100 1m":                               {Events: 100, Window: time.Minute},
		" 5   10s ":                            {Events: 5, Window: 10 * time.Second},
		"100/1m":                               {Events: 100, Window: time.Minute},
		"1/250ms":                              {Events: 1, Window: 250 * time.Millisecond},
		"1 1ms":                                {Events: 1, Window: time.Millisecond},
		"9007199254740992 876600h":             {Events: ratelimit.MaxEvents, Window: ratelimit.MaxWindow},
		"1 36525d":                             {Events: 1, Window: ratelimit.MaxWindow},
		"1 2w":                                 {Events: 1, Window: 14 * day},
		"1 1w2d3h":                             {Events: 1, Window: 9*day + 3*time.Hour},
		"1 1d":                                 {Events: 1, Window: day},
		"10000 1d calendar":                    {Events: 10000, Calendar: ratelimit.Day},
		"10000 1w calendar":                    {Events: 10000, Calendar: ratelimit.Week},
		"10000/1mo calendar":                   {Events: 10000, Calendar: ratelimit.Month},
		"10000 1y calendar UTC":                {Events: 10000, Calendar: ratelimit.Year, Zone: "UTC"},
		"10000 1mo calendar Europe/Berlin":     {Events: 10000, Calendar: ratelimit.Month, Zone: "Europe/Berlin"},
		"10000/1mo calendar Africa/Porto-Novo": {Events: 10000, Calendar: ratelimit.Month, Zone: "Africa/Porto-Novo"},
	} {
		got, err := ratelimit.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "100", "1m", "100 1m 5", "0 1m", "-1 1m", "1.5 1m", "9007199254740993 1m", "x 1m", "1 0s", "1 999us", "1 1000001ns", "1 876601h", "1 -1s",
		"1 1x", "1 1d1", "1 99999999999d", "1 4294967296w", "1 d", "1 1mo", "1 calendar", "1 1h calendar", "0 1d calendar", "1 2d calendar",
		"1 1d calendar Mars/Base", "1 1d calendar Local", "1 1d calendar UTC UTC", "1 1d Calendar",
	} {
		got, err := ratelimit.ParseRate(text)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != "limit" || field.Value != text {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestParseWindow(t *testing.T) {
	for text, want := range map[string]time.Duration{"1m": time.Minute, "1w": 168 * time.Hour, "1d12h": 36 * time.Hour, "0": 0, "0d": 0, "1w1d1h1m1s1ms1us1ns": 193*time.Hour + time.Minute + time.Second + time.Millisecond + time.Microsecond + time.Nanosecond} {
		if got, err := ratelimit.ParseWindow(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "d", "1d1w", "-1d", "1d-1h", "-1s", "36527d", "5220w", "1.5d"} {
		if got, err := ratelimit.ParseWindow(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestCapacity(t *testing.T) {
	l := ratelimit.Limit{Events: 5}
	if l.Capacity() != 5 {
		t.Error(l.Capacity())
	}
	if l.Burst = 7; l.Capacity() != 7 {
		t.Error(l.Capacity())
	}
}

func TestSources(t *testing.T) {
	for source, want := range map[ratelimit.Source]string{
		ratelimit.FromPostgres: "postgres", ratelimit.FromMemory: "memory", ratelimit.FromBlocked: "blocked", ratelimit.Undecided: "undecided",
	} {
		if got := source.String(); got != want {
			t.Errorf("%d is %q, want %q", source, got, want)
		}
	}
}

// TestGCRADrains: a burst that would take more than a hundred years to drain is
// refused, and one that takes just that is not.
func TestGCRADrains(t *testing.T) {
	l := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.GCRA, Events: 1, Window: ratelimit.MaxWindow / 4, Burst: 4}
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	l.Window += time.Microsecond
	if err := l.Validate(); err == nil || !strings.Contains(err.Error(), "drain within 100 years") {
		t.Error(err)
	}
	l = ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.GCRA, Events: 1 << 42, Window: 1 << 20 * time.Microsecond}
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(l *ratelimit.Limit){func(l *ratelimit.Limit) { l.Events++ }, func(l *ratelimit.Limit) { l.Burst = 1<<42 + 1 },
		func(l *ratelimit.Limit) { l.Events, l.Burst = l.Events+1, 1 }} {
		changed := l
		change(&changed)
		if err := changed.Validate(); err == nil || !strings.Contains(err.Error(), "must not exceed 2^62") {
			t.Errorf("%+v: %v", changed, err)
		}
	}
}
