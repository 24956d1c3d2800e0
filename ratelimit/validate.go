package ratelimit

import (
	"math"
	"strconv"
	"time"
)

// wantCount is the range of Events and Burst.
const wantCount = "a whole number from 1 to 9007199254740992"

// Validate returns a *FieldError for the first invalid field, or nil.
func (l *Limit) Validate() error {
	if l.Prefix == "" || len(l.Prefix) > MaxPrefix || !storable(l.Prefix) {
		return &FieldError{"prefix", l.Prefix, "a name of 1 to 255 bytes of UTF-8 without NUL"}
	}
	if len(l.CountedAs) > MaxPrefix || !storable(l.CountedAs) {
		return &FieldError{"counted_as", l.CountedAs, "a name of at most 255 bytes of UTF-8 without NUL"}
	}
	if int(l.Algorithm) >= len(algorithms) {
		return &FieldError{"algorithm", l.Algorithm.String(), wantAlgorithm()}
	}
	algorithm := &algorithms[l.Algorithm]
	events := strconv.FormatInt(l.Events, 10)
	if l.Events < 1 || l.Events > MaxEvents {
		return &FieldError{"events", events, wantCount}
	}
	switch {
	case l.Calendar != NoCalendar || l.TimeZone != "":
		if err := l.validateCalendar(); err != nil {
			return err
		}
	case algorithm.noWindow:
		if l.Window != 0 {
			return &FieldError{"window", l.Window.String(), "left out: " + algorithm.name + " has none"}
		}
	case !isWindow(l.Window):
		return &FieldError{"window", l.Window.String(), wantWindow}
	}
	if l.Anchor != 0 && (l.Anchor < 0 || l.Anchor > maxAnchor || l.Calendar != Month && l.Calendar != Year) {
		return &FieldError{"anchor", strconv.FormatInt(l.Anchor, 10),
			"0, or for months and years on the calendar a day of 1970 to 1972 as AnchorOn returns it"}
	}
	burst := strconv.FormatInt(l.Burst, 10)
	if l.Burst != 0 && !algorithm.burst {
		return &FieldError{"burst", burst, "left out: " + algorithm.name + " has none"}
	}
	if l.Burst < 0 || l.Burst > MaxEvents {
		return &FieldError{"burst", burst, wantCount}
	}
	if l.Events > algorithm.maxEvents {
		return &FieldError{"events", events, "at most " + strconv.FormatInt(algorithm.maxEvents, 10) +
			" for " + algorithm.name + ", which keeps each of them"}
	}
	if err := l.validateLease(); err != nil {
		return err
	}
	if l.Reserves && (l.Lease > 0 || l.Algorithm != SlidingWindow && l.Algorithm != FixedWindow) {
		return &FieldError{"reserves", "true", "left out for " + algorithm.name + ", and with a lease"}
	}
	if algorithm.check != nil {
		return algorithm.check(l)
	}
	return nil
}

// isWindow reports whether a Limit may have the Window.
func isWindow(d time.Duration) bool {
	return d >= MinWindow && d <= MaxWindow && d%time.Microsecond == 0
}

// validateLease returns a *FieldError if Lease is out of range or not supported by the limit.
func (l *Limit) validateLease() error {
	name, reason := algorithms[l.Algorithm].name, algorithms[l.Algorithm].noLease
	if l.Calendar != NoCalendar {
		name += " on the calendar"
		reason = "only the database knows when such a window ends"
	}
	want := ""
	switch {
	case l.Lease == 0:
		return nil
	case math.IsNaN(l.Lease) || l.Lease < MinLease || l.Lease > MaxLease:
		want = "0 for none, or a share from 0.001 to 0.5"
	case reason == "":
		return nil
	default:
		want = "left out for " + name + ": " + reason
	}
	return &FieldError{"lease", strconv.FormatFloat(l.Lease, 'g', -1, 64), want}
}

// validateCalendar returns a *FieldError if Calendar, Zone or the fields that depend on them
// are invalid.
func (l *Limit) validateCalendar() error {
	if int(l.Calendar) >= len(calendarUnits) {
		return &FieldError{"calendar", strconv.Itoa(int(l.Calendar)), "NoCalendar, Day, Week, Month or Year"}
	}
	if l.Calendar == NoCalendar {
		return &FieldError{"zone", l.TimeZone, "left out for a limit that is not on the calendar"}
	}
	if !algorithms[l.Algorithm].calendar {
		return &FieldError{"algorithm", l.Algorithm.String(), "fixed_window for a limit on the calendar"}
	}
	if l.Window != 0 {
		return &FieldError{"window", l.Window.String(), "0 for a limit on the calendar"}
	}
	timeZone, err := ParseTimeZone(l.TimeZone)
	if err != nil {
		return &FieldError{"zone", l.TimeZone, wantTimeZone}
	}
	if timeZone != l.TimeZone {
		return &FieldError{"zone", l.TimeZone, timeZone + ", the name of the same zone as a place"}
	}
	return nil
}
