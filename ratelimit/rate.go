package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is the result of ParseRate. Its fields are those of a Limit with the same names.
type Rate struct {
	Events   int64
	Window   time.Duration
	Calendar Calendar
	Zone     string
}

// ParseRate parses a quota and its window. The window is a duration (see ParseWindow), as in
// "100 1m" or "100/1m", or a calendar unit, as in "10000 1mo calendar", optionally with a time
// zone: "10000 1d calendar Europe/Berlin". The error is a *FieldError.
func ParseRate(text string) (Rate, error) {
	fields := strings.Fields(strings.Replace(text, "/", " ", 1))
	if len(fields) > 2 && fields[2] == "calendar" {
		// A zone may contain a slash too.
		fields = strings.Fields(text)
		if first := strings.SplitN(fields[0], "/", 2); len(first) == 2 {
			fields = append(first, fields[1:]...)
		}
		return parseCalendar(text, fields)
	}
	if len(fields) != 2 {
		return Rate{}, &FieldError{"limit", text, wantEvents}
	}
	r, err := parseEvents(text, fields[0])
	if err != nil {
		return Rate{}, err
	}
	r.Window, err = ParseWindow(fields[1])
	if err != nil || r.Window < MinWindow || r.Window > MaxWindow || r.Window%time.Microsecond != 0 {
		return Rate{}, &FieldError{"limit", text, wantWindow}
	}
	return r, nil
}

func parseEvents(text, events string) (Rate, error) {
	n, err := strconv.ParseInt(events, 10, 64)
	if err != nil || n < 1 || n > MaxEvents {
		return Rate{}, &FieldError{"limit", text, wantEvents}
	}
	return Rate{Events: n}, nil
}

// ParseWindow parses a duration such as "250ms", "1m", "1h30m", "1d" or "2w". It accepts the
// syntax of time.ParseDuration, with d for 24 hours and w for 7 days in front.
func ParseWindow(text string) (time.Duration, error) {
	rest := text
	var days time.Duration
	for _, unit := range []string{"w", "d"} {
		at := strings.Index(rest, unit)
		if at < 0 {
			continue
		}
		n, err := strconv.ParseUint(rest[:at], 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration such as 30s, 1m, 1h30m, 1d or 2w", text)
		}
		day := 24 * time.Hour
		if unit == "w" {
			day = 7 * 24 * time.Hour
		}
		if n > uint64(MaxWindow/day)+1 {
			return 0, fmt.Errorf("%q is longer than a hundred years", text)
		}
		days += time.Duration(n) * day
		rest = rest[at+1:]
	}
	if rest == "" && text != "" {
		return days, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 30s, 1m, 1h30m, 1d or 2w", text)
	}
	if days+d < 0 { // beyond the longest Duration
		return 0, fmt.Errorf("%q is longer than a hundred years", text)
	}
	return days + d, nil
}

const (
	wantUnits = "with the units ms, s, m, h, d and w, as in 100 1m, or on the calendar, as in " +
		"10000 1mo calendar"
	wantEvents = "a whole number of events from 1 to 9007199254740992, then a window " + wantUnits
	wantWindow = "a window from 1ms to 876600h (100 years) in whole microseconds, " + wantUnits
	wantZone   = "with a time zone of the IANA database, such as Europe/Berlin, that this machine knows"
)

const wantCalendar = "events, then 1d, 1w, 1mo or 1y, the word calendar, and perhaps a time zone, as in " +
	"10000 1mo calendar Europe/Berlin"

// parseCalendar parses the fields of "10000 1mo calendar [zone]".
func parseCalendar(text string, fields []string) (Rate, error) {
	if len(fields) > 4 {
		return Rate{}, &FieldError{"limit", text, wantCalendar}
	}
	rate, err := parseEvents(text, fields[0])
	if err != nil {
		return Rate{}, err
	}
	for unit := range calendarUnits {
		if unit > 0 && fields[1] == calendarUnits[unit] {
			rate.Calendar = Calendar(unit)
		}
	}
	if rate.Calendar == NoCalendar {
		return Rate{}, &FieldError{"limit", text, wantCalendar}
	}
	if len(fields) == 4 {
		rate.Zone = fields[3]
		if err := checkZone(rate.Zone); err != nil {
			return Rate{}, &FieldError{"limit", text, wantZone}
		}
	}
	return rate, nil
}
