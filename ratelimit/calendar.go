package ratelimit

import "time"

// Calendar selects the calendar unit that a window lasts.
type Calendar uint8

const (
	// NoCalendar means that a window begins with a key's first hit and lasts Limit.Window.
	NoCalendar Calendar = iota
	// Day begins at midnight.
	Day
	// Week begins at midnight on Monday.
	Week
	// Month begins at midnight on the first day of the month.
	Month
	// Year begins at midnight on 1 January.
	Year
)

// calendarUnits holds the name of each Calendar in configurations.
var calendarUnits = []string{"", "1d", "1w", "1mo", "1y"}

// maxAnchor is the largest Anchor: 31 December 1972, in days since 1 January 1970.
const maxAnchor = 1095

// AnchorOn returns the Anchor for windows that begin on the day of t, in t's own time zone.
// Days that produce the same windows have the same Anchor. For calendars other than Month
// and Year it returns 0.
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
