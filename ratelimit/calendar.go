package ratelimit

import (
	"errors"
	"strings"
	"time"
)

// Calendar is the unit of the calendar that a window lasts.
type Calendar uint8

const (
	// NoCalendar is for windows that begin with a key's first hit.
	NoCalendar Calendar = iota
	// Day begins at midnight.
	Day
	// Week begins at midnight before Monday.
	Week
	// Month begins at midnight before the first day of the month.
	Month
	// Year begins at midnight before the first of January.
	Year
)

// calendarUnits are the windows on the calendar in configurations, by Calendar.
var calendarUnits = []string{"", "1d", "1w", "1mo", "1y"}

// checkZone returns an error for what is not the IANA name of a time zone; "" is UTC. "Local" is
// refused.
func checkZone(zone string) error {
	if strings.EqualFold(zone, "local") {
		return errors.New("the zone Local is another one on each machine")
	}
	_, err := time.LoadLocation(zone)
	return err
}

// maxAnchor is the last day that an Anchor can be: 31 December 1972.
const maxAnchor = 1095

// AnchorOn is the Anchor for windows that begin on the day of t, by its own clock. Days that
// give the same windows have the same Anchor. It is 0 unless the calendar is Month or Year.
func AnchorOn(calendar Calendar, t time.Time) int64 {
	_, month, day := t.Date()
	if calendar == Month {
		return int64(day - 1) // in January 1970
	}
	if calendar != Year || month == time.January && day == 1 {
		return 0
	}
	// 1972 has a 29 February.
	return time.Date(1972, month, day, 0, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60)
}
