package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is the result of ParseRate. Its fields mean the same as the fields of a Limit with their names.
type Rate struct {
	Events   int64
	Window   time.Duration
	Calendar Calendar
	TimeZone string
}

// ParseRate parses a quota and its window. The window is a duration (see ParseWindow), as in
// "100 1m" or "100/1m", or a calendar unit, as in "10000 1mo calendar", optionally with a time
// zone (see ParseTimeZone): "10000 1d calendar Europe/Berlin". The error is a *FieldError.
func ParseRate(text string) (Rate, error) {
	invalid := func(want string) (Rate, error) { return Rate{}, &FieldError{"limit", text, want} }
	fields := strings.Fields(strings.Replace(text, "/", " ", 1))
	onCalendar := len(fields) > 2 && fields[2] == "calendar"
	if len(fields) != 2 && !onCalendar {
		return invalid(wantEvents)
	}
	events, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || events < 1 || events > MaxEvents {
		return invalid(wantEvents)
	}
	r := Rate{Events: events}
	if !onCalendar {
		r.Window, err = ParseWindow(fields[1])
		if err != nil || !isWindow(r.Window) {
			return invalid("a window " + wantWindow + ", " + wantUnits)
		}
		return r, nil
	}
	for unit := range calendarUnits {
		if fields[1] == calendarUnits[unit] { // never ""
			r.Calendar = Calendar(unit)
		}
	}
	if r.Calendar == NoCalendar {
		return invalid(wantCalendar)
	}
	timeZone := strings.Join(fields[3:], "/") // the replaced slash may belong to the zone
	r.TimeZone, err = ParseTimeZone(timeZone)
	if !strings.HasSuffix(strings.TrimSpace(text), timeZone) || err != nil {
		return invalid("with " + wantTimeZone)
	}
	return r, nil
}

// ParseWindow parses a duration such as "250ms", "1m", "1h30m", "1d" or "2w". It accepts the
// syntax of time.ParseDuration, with d for 24 hours and w for 7 days in front.
func ParseWindow(text string) (time.Duration, error) {
	failure := fmt.Errorf("%q is not a duration such as 30s, 1m, 1h30m, 1d or 2w, or too long", text)
	rest := text
	var hours uint64
	for _, unit := range []string{"w", "d"} {
		i := strings.Index(rest, unit)
		if i < 0 {
			continue
		}
		n, err := strconv.ParseUint(rest[:i], 10, 31)
		if err != nil {
			return 0, failure
		}
		if unit == "w" {
			n *= 7
		}
		hours += 24 * n
		rest = rest[i+1:]
	}
	if rest != text {
		rest = strconv.FormatUint(hours, 10) + "h" + rest
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, failure
	}
	return d, nil
}

const (
	wantUnits = "with the units ms, s, m, h, d and w, as in 100 1m, or on the calendar, as in " +
		"10000 1mo calendar"
	wantEvents   = "a whole number of events from 1 to 9007199254740992, then a window " + wantUnits
	wantWindow   = "from 1ms to 876600h (100 years) in whole microseconds"
	wantTimeZone = "UTC or a place of the IANA time zones, such as Europe/Berlin, that this machine knows"
	wantCalendar = "events, then 1d, 1w, 1mo or 1y, the word calendar, and perhaps a time zone, as in " +
		"10000 1mo calendar Europe/Berlin"
)
