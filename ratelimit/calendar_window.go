package ratelimit

import (
	"strings"
	"time"
)

// Calendar is a unit of the calendar that a window lasts.
type Calendar uint8

const (
	// NoCalendar is for windows that begin with a key's first hit.
	NoCalendar Calendar = iota
	// Day begins at midnight.
	Day
	// Week begins at midnight before Monday.
	Week
	// Month begins at midnight before the first.
	Month
	// Year begins at midnight before the first of January.
	Year
)

// calendarUnits are the names: as a window in configuration, and as SQL has it.
var calendarUnits = []struct{ window, sql string }{{}, {"1d", "day"}, {"1w", "week"}, {"1mo", "month"}, {"1y", "year"}}

const wantCalendar = "events, then 1d, 1w, 1mo or 1y, the word calendar, and perhaps a time zone, as in 10000 1mo calendar Europe/Berlin"

// parseCalendar reads "10000 1mo calendar [zone]".
func parseCalendar(text string, fields []string) (Rate, error) {
	if len(fields) > 4 {
		return Rate{}, &FieldError{"limit", text, wantCalendar}
	}
	rate, err := parseEvents(text, fields[0])
	if err != nil {
		return Rate{}, err
	}
	for unit := range calendarUnits {
		if unit > 0 && fields[1] == calendarUnits[unit].window {
			rate.Calendar = Calendar(unit)
		}
	}
	if rate.Calendar == NoCalendar {
		return Rate{}, &FieldError{"limit", text, wantCalendar}
	}
	if len(fields) == 4 {
		rate.Zone = fields[3]
		if _, err := location(rate.Zone); err != nil {
			return Rate{}, &FieldError{"limit", text, wantZone}
		}
	}
	return rate, nil
}

const wantZone = "with a time zone of the IANA database, such as Europe/Berlin, that this machine knows"

// location returns a zone by its name; "" is UTC.
func location(zone string) (*time.Location, error) {
	if strings.EqualFold(zone, "local") {
		zone = "Local is this machine's own, not a name for others"
	}
	return time.LoadLocation(zone)
}

// validateCalendar checks what concerns the calendar.
func (l *Limit) validateCalendar() error {
	if l.Calendar == NoCalendar || int(l.Calendar) >= len(calendarUnits) {
		return &FieldError{"limit", l.Zone, "without a time zone unless it is on the calendar"}
	}
	if l.Algorithm != FixedWindow {
		return &FieldError{"algorithm", l.Algorithm.String(), "fixed_window for a limit on the calendar"}
	}
	if l.Window != 0 {
		return &FieldError{"limit", l.Window.String(), "without a window of its own on the calendar"}
	}
	if _, err := location(l.Zone); err != nil {
		return &FieldError{"limit", l.Zone, wantZone}
	}
	return nil
}

// calendarWindow is a fixed window that begins and ends with a unit of the
// calendar in a time zone, so that its length varies: a day of a change to
// daylight-saving time has 23 or 25 hours, a month 28 to 31 days.
//
// Where a zone sets its clocks back over midnight, so that it shows twice (in
// Havana, say), the window that ends there may say so an hour late; the next one
// begins in time.
//
// State: count, window_start; expires_at is the window's end, exactly.
var calendarWindow = algorithm{takeCalendar, refundCalendar, lookCalendar, retryCalendar, claimStart, &calendarWindowSQL}

// period returns the first moment of the unit that now is in, and of the next.
func period(l *Limit, now int64) (start, end int64) {
	zone, err := location(l.Zone)
	if err != nil {
		zone = time.UTC // not after Validate
	}
	t := time.UnixMicro(now).In(zone)
	year, month, day := t.Date()
	switch l.Calendar {
	case Day:
		return firstMoment(year, month, day, zone), firstMoment(year, month, day+1, zone)
	case Week:
		monday := day - (int(t.Weekday())+6)%7
		return firstMoment(year, month, monday, zone), firstMoment(year, month, monday+7, zone)
	case Month:
		return firstMoment(year, month, 1, zone), firstMoment(year, month+1, 1, zone)
	}
	return firstMoment(year, 1, 1, zone), firstMoment(year+1, 1, 1, zone)
}

// firstMoment is when the clocks of a zone first show midnight of a day, or
// where they skip it, the moment at which they do.
func firstMoment(year int, month time.Month, day int, zone *time.Location) int64 {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	if t.Hour() > 12 {
		_, t = t.ZoneBounds()
	}
	return t.UnixMicro()
}

func takeCalendar(l *Limit, r *row, now, n, cost int64) int64 {
	start, end := period(l, larger(now, r.start))
	fresh := r.start < start
	used := r.count
	if fresh {
		used = 0
	}
	granted := fit(l.Events-used, n, cost)
	if fresh {
		r.start = start
		r.prevCount = 0
	}
	r.count = used + granted*cost
	r.expires = end
	return granted
}

func refundCalendar(l *Limit, r *row, now, cost int64, c *claim) {
	if c != nil && c.at != r.start || now >= r.expires {
		return
	}
	r.count = larger(0, r.count-cost)
}

// lookCalendar relies on expires_at, so that only one idea of the zone counts:
// that of who wrote the row.
func lookCalendar(l *Limit, r *row, now int64) (free, reset int64) {
	if r.start == 0 || r.count == 0 || now >= r.expires {
		return l.Events, now
	}
	return l.Events - r.count, r.expires
}

func retryCalendar(l *Limit, r *row, now, cost int64) int64 { return r.expires }

var calendarWindowSQL = stepSQL{
	columns:     "count, prev_count, window_start",
	needs:       []parameter{unitParameter, zoneParameter},
	readExpires: true,
	fresh: `i.granted * i.cost, NULL, date_trunc(i.unit, clock.now, i.zone),
		(date_trunc(i.unit, clock.now AT TIME ZONE i.zone) + ('1 ' || i.unit)::interval) AT TIME ZONE i.zone`,
	step: `SELECT excluded.slot, granted, used + granted * {cost},
		CASE WHEN NOT fresh THEN r.prev_count END,
		CASE WHEN fresh THEN excluded.window_start ELSE r.window_start END,
		CASE WHEN fresh OR r.window_start < excluded.expires_at THEN excluded.expires_at
			ELSE (date_trunc({unit}, r.window_start AT TIME ZONE {zone}) + ('1 ' || {unit})::interval) AT TIME ZONE {zone} END
	FROM (SELECT *, greatest(0, least({n}, ({quota} - used) / {cost})) AS granted
	FROM (SELECT *, CASE WHEN fresh THEN 0 ELSE greatest(0, r.count) END AS used
	FROM (SELECT coalesce(r.window_start < excluded.window_start, true) AS fresh
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	refund: `count = greatest(0, r.count - i.cost)
	WHERE r.window_start = coalesce(i.claimed, r.window_start) AND clock.now < r.expires_at`,
	scan: func(columns [][]byte, r *row) {
		scanCounts(columns, r)
		r.expires = timestamp(columns[3])
	},
}
