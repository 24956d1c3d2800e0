package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzRateIsValidOrQuoted checks two functions. ParseRate returns a rate that a limit can have, or an error
// that quotes the text. ParseWindow returns the same window for the text that the window's String returns.
func FuzzRateIsValidOrQuoted(f *testing.F) {
	for _, text := range []string{
		"100 1m", "100/1m", "1 1w2d3h", "1 250ms", "9007199254740992 36525d", "10000 1mo calendar",
		"5/1d calendar Europe/Berlin", "1/1y calendar UTC x", "36525d2562047h", "0 1m", "-1 1s",
		"a\x00", "\xff", "1 1d calendar ../etc",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ratelimit.ParseWindow(text); err == nil {
			again, err := ratelimit.ParseWindow(d.String())
			if err != nil || again != d || d < 0 {
				t.Errorf("ParseWindow(%q) = %v; ParseWindow(%v) = %v, %v, want the same", text, d, d, again,
					err)
			}
		}
		rate, err := ratelimit.ParseRate(text)
		if err != nil {
			var wrong *ratelimit.FieldError
			if !errors.As(err, &wrong) || wrong.Value != text || wrong.Want == "" {
				t.Errorf("ParseRate(%q): error %v, want a FieldError with the text", text, err)
			}
			return
		}
		limit := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: rate.Events,
			Window: rate.Window, Calendar: rate.Calendar, TimeZone: rate.TimeZone}
		if err := limit.Validate(); err != nil {
			t.Errorf("ParseRate(%q) = %+v, and the limit has the error %v, want none", text, rate, err)
		}
	})
}
