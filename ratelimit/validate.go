package ratelimit

import (
	"math"
	"strconv"
	"time"
)

// WantLease says what Limit.Lease must be, in the words of a configuration.
const WantLease = "a share of what is left from 0.1% to 50%, such as 5%"

const (
	wantUnits  = "with the units ms, s, m, h, d and w, as in 100 1m, or on the calendar, as in 10000 1mo calendar"
	wantEvents = "a whole number of events from 1 to 9007199254740992, then a window " + wantUnits
	wantWindow = "a window from 1ms to 876600h (100 years) in whole microseconds, " + wantUnits
)

// Validate returns a *FieldError for the first field out of its range.
func (l *Limit) Validate() error {
	if l.Prefix == "" || len(l.Prefix) > MaxPrefix || !storable(l.Prefix) {
		return &FieldError{"prefix", l.Prefix, "a name of 1 to " + strconv.Itoa(MaxPrefix) + " bytes of UTF-8 without NUL"}
	}
	if int(l.Algorithm) >= len(algorithms) {
		return &FieldError{"algorithm", l.Algorithm.String(), wantAlgorithm()}
	}
	algorithm := &algorithms[l.Algorithm]
	if l.Events < 1 || l.Events > MaxEvents {
		return &FieldError{"limit", strconv.FormatInt(l.Events, 10), wantEvents}
	}
	if l.Calendar != NoCalendar || l.Zone != "" {
		if err := l.validateCalendar(); err != nil {
			return err
		}
	} else if l.Window < MinWindow || l.Window > MaxWindow || l.Window%time.Microsecond != 0 {
		return &FieldError{"limit", l.Window.String(), wantWindow}
	}
	if l.Anchor != 0 && (l.Anchor < 0 || l.Anchor > MaxAnchor || l.Calendar != Month && l.Calendar != Year) {
		return &FieldError{"anchor", strconv.FormatInt(l.Anchor, 10), "0, or for months and years on the calendar a day of 1970 to 1972 as AnchorOn returns it"}
	}
	if l.Burst != 0 && !algorithm.burst {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "left out: " + algorithm.name + " has none"}
	}
	if l.Burst < 0 || l.Burst > MaxEvents {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "a whole number from 1 to " + strconv.Itoa(MaxEvents)}
	}
	if l.Events > algorithm.maxEvents {
		return &FieldError{"limit", strconv.FormatInt(l.Events, 10),
			"at most " + strconv.FormatInt(algorithm.maxEvents, 10) + " events for " + algorithm.name + ", which keeps the time of each"}
	}
	if err := l.validateLease(); err != nil {
		return err
	}
	if algorithm.check != nil {
		return algorithm.check(l)
	}
	return nil
}

// validateLease checks Lease.
func (l *Limit) validateLease() error {
	if l.Lease == 0 {
		return nil
	}
	share := strconv.FormatFloat(l.Lease*100, 'g', 6, 64) + "%"
	if math.IsNaN(l.Lease) || l.Lease < MinLease || l.Lease > MaxLease {
		return &FieldError{"lease", share, WantLease}
	}
	reason := algorithms[l.Algorithm].noLease
	if l.Calendar != NoCalendar {
		reason = "only the database knows when such a window ends"
	}
	if reason != "" {
		name := algorithms[l.Algorithm].name
		if l.Calendar != NoCalendar {
			name += " on the calendar"
		}
		return &FieldError{"lease", share, "left out for " + name + ": " + reason}
	}
	return nil
}

// validateCalendar checks the fields of a limit on the calendar.
func (l *Limit) validateCalendar() error {
	if l.Calendar == NoCalendar || int(l.Calendar) >= len(calendarUnits) {
		return &FieldError{"limit", l.Zone, "without a time zone unless it is on the calendar"}
	}
	if !algorithms[l.Algorithm].calendar {
		return &FieldError{"algorithm", l.Algorithm.String(), "fixed_window for a limit on the calendar"}
	}
	if l.Window != 0 {
		return &FieldError{"limit", l.Window.String(), "without a window of its own on the calendar"}
	}
	if _, err := LoadZone(l.Zone); err != nil {
		return &FieldError{"limit", l.Zone, wantZone}
	}
	return nil
}
