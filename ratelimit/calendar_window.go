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
// State: count, window_start; expires_at is the window's end, exactly.
var calendarWindow = algorithm{takeCalendar, refundCalendar, lookCalendar, nil, retryCalendar, claimStart, &calendarWindowSQL}

// period returns the first moment of the unit that now is in, and of the next.
func period(l *Limit, now int64) (start, end int64) {
	zone, err := location(l.Zone)
	if err != nil {
		zone = time.UTC // not after Validate
	}
	t := time.UnixMicro(now).In(zone)
	year, month, day := t.Date()
	years, months, days := 0, 0, 0
	switch l.Calendar {
	case Day:
		days = 1
	case Week:
		day -= (int(t.Weekday()) + 6) % 7
		days = 7
	case Month:
		day, months = 1, 1
	default:
		month, day, years = 1, 1, 1
	}
	end = firstMoment(year+years, month+time.Month(months), day+days, zone)
	if end <= now {
		// The next has begun, then the clocks were set back to before it.
		year, month, day = year+years, month+time.Month(months), day+days
		end = firstMoment(year+years, month+time.Month(months), day+days, zone)
	}
	return firstMoment(year, month, day, zone), end
}

// firstMoment is when the clocks of a zone first show midnight of a day, or a
// later time if they skip it. time.Date does not say which of two midnights it
// means, where clocks are set back over one.
func firstMoment(year int, month time.Month, day int, zone *time.Location) int64 {
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	at := midnight.Add(-26 * time.Hour).In(zone) // it is not that day yet anywhere
	for {
		_, offset := at.Zone()
		_, end := at.ZoneBounds()
		t := midnight.Add(-time.Duration(offset) * time.Second)
		if t.Before(at) {
			t = at
		}
		// On the last day of a leap year, Go may say that the zone's time has
		// ended before.
		if end.IsZero() || t.Before(end) || !end.After(at) {
			return t.UnixMicro()
		}
		at = end
	}
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

// periodSQL is period as a query: the starts and the ends.
func periodSQL(now, unit, zone string) string {
	return `SELECT ` + firstMomentSQL("begin") + ` AS starts, ` + firstMomentSQL("begin + step") + ` AS ends
	FROM (SELECT now, step, zone, CASE WHEN ` + firstMomentSQL("begin + step") + ` <= now THEN begin + step ELSE begin END AS begin
	FROM (SELECT now, zone, date_trunc(unit, now AT TIME ZONE zone) AS begin, ('1 ' || unit)::interval AS step
	FROM (SELECT ` + now + ` AS now, ` + unit + ` AS unit, ` + zone + ` AS zone OFFSET 0) p OFFSET 0) p OFFSET 0) p`
}

// firstMomentSQL is firstMoment of a midnight in p.zone. Of two, Postgres takes
// the second, so it tries by what the clocks were ahead of UTC a day earlier.
func firstMomentSQL(midnight string) string {
	return `(SELECT CASE WHEN early AT TIME ZONE p.zone = midnight THEN early ELSE late END
		FROM (SELECT midnight, late, (midnight - ((late - interval '24 hours') AT TIME ZONE p.zone - (late - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS early
		FROM (SELECT midnight, midnight AT TIME ZONE p.zone AS late FROM (SELECT ` + midnight + ` AS midnight OFFSET 0) m OFFSET 0) m OFFSET 0) m)`
}

var calendarWindowSQL = stepSQL{
	columns:     "count, prev_count, window_start",
	returned:    "count, coalesce(prev_count, 0), window_start",
	needs:       []parameter{unitParameter, zoneParameter},
	readExpires: true,
	fresh:       "i.granted * i.cost, NULL, w.starts, w.ends",
	from:        ", LATERAL (" + periodSQL("clock.now", "i.unit", "i.zone") + ") w",
	step: `SELECT excluded.slot, granted, used + granted * {cost},
		CASE WHEN NOT fresh THEN r.prev_count END,
		CASE WHEN fresh THEN excluded.window_start ELSE r.window_start END,
		CASE WHEN fresh OR r.window_start < excluded.expires_at THEN excluded.expires_at
			ELSE (SELECT ends FROM (` + periodSQL("r.window_start", "{unit}", "{zone}") + `) w) END
	FROM (SELECT *, greatest(0, least(excluded.granted, ({quota} - used) / {cost})) AS granted
	FROM (SELECT *, CASE WHEN fresh THEN 0 ELSE greatest(0, r.count) END AS used
	FROM (SELECT coalesce(r.window_start < excluded.window_start, true) AS fresh
	OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	refund: `count = greatest(0, r.count - i.cost)
	WHERE r.window_start = coalesce(i.claimed, r.window_start) AND clock.now < r.expires_at`,
	scan: scanCalendar,
}

// scanCalendar reads expires_at besides.
func scanCalendar(cells []cell, width int, rows []*row) {
	scanCounts(cells, width, rows)
	at := 3
	for _, r := range rows {
		if cells[at].Length == 8 {
			r.expires = cells[at].Value + postgresEpoch
		}
		at += width
	}
}
