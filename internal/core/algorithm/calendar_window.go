package algorithm

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A calendar window is a fixed window that starts and ends with a unit of the calendar in a time zone. With
// Limit.Anchor, months or years start on another day. The length varies: a day on which daylight-saving time
// starts or ends has 23 or 25 hours, and a month has 28 to 31 days.
//
// State: count, window_start. expires_at is exactly the end of the window.

func init() {
	define(calendarWindow, Definition{
		Name: "calendar", Charge: chargeFixed, Adjust: adjustFixed, Peek: peekFixed, Passes: passesFixed,
		SQL: &calendarWindowSQL,
	})
	defineReserving(calendarWindow)
}

// Period returns the start of the calendar unit that contains now, and the start of the next one, in
// microseconds since the Unix epoch.
func Period(l *ratelimit.Limit, now int64) (start, end int64) {
	timeZone, err := time.LoadLocation(l.TimeZone)
	if err != nil {
		timeZone = time.UTC // unreachable after Limit.Validate
	}
	t := time.UnixMicro(now).In(timeZone)
	n := 0
	end = firstMoment(unitDay(l, t, 1), timeZone)
	if end <= now {
		// The clocks were set back after the start of the next unit.
		n = 1
		end = firstMoment(unitDay(l, t, 2), timeZone)
	}
	return firstMoment(unitDay(l, t, n), timeZone), end
}

// unitDay returns midnight, in UTC, of the first day of a unit: the n-th after the unit that contains the
// local time t.
func unitDay(l *ratelimit.Limit, t time.Time, n int) time.Time {
	year, month, day := t.Date()
	if l.Calendar == ratelimit.Day {
		return midnight(year, month, day+n)
	}
	if l.Calendar == ratelimit.Week {
		return midnight(year, month, day-(int(t.Weekday())+6)%7+7*n)
	}
	_, anchorMonth, anchorDay := midnight(1970, 1, 1+int(l.Anchor)).Date()
	if l.Calendar == ratelimit.Year {
		if month < anchorMonth || month == anchorMonth && day < inMonth(year, month, anchorDay).Day() {
			n--
		}
		return inMonth(year+n, anchorMonth, anchorDay)
	}
	if day < inMonth(year, month, anchorDay).Day() {
		n--
	}
	return inMonth(year, month+time.Month(n), anchorDay)
}

func midnight(year int, month time.Month, day int) time.Time {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// inMonth returns midnight of a day of a month, or of the month's last day if the month is shorter.
func inMonth(year int, month time.Month, day int) time.Time {
	last := midnight(year, month+1, 0)
	if day >= last.Day() {
		return last
	}
	return midnight(year, month, day)
}

// firstMoment returns the time at which the clocks of a zone first show the date and time of midnight, or a
// later time if they skip midnight. midnight is in UTC. time.Date cannot replace firstMoment, because on a
// day with two midnights time.Date may return either of them.
func firstMoment(midnight time.Time, timeZone *time.Location) int64 {
	from := midnight.Add(-26 * time.Hour).In(timeZone) // before the start of the day in any zone
	for {
		_, offset := from.Zone()
		_, end := from.ZoneBounds()
		first := midnight.Add(-time.Duration(offset) * time.Second)
		if first.Before(from) {
			first = from
		}
		// On the last day of a leap year, ZoneBounds may return an end before from.
		if end.IsZero() || first.Before(end) || !end.After(from) {
			return first.UnixMicro()
		}
		from = end
	}
}

// periodSQL is Period as a query with the columns starts and ends. A unit starts n units after an origin: the
// anchor, or without an anchor the start of the unit that contains now. Postgres adds months to a day like
// inMonth: in a month that is too short, the result is the last day.
var periodSQL = `SELECT ` + FirstMomentSQL("origin + n * step") + ` AS starts,
		` + FirstMomentSQL("origin + (n + 1) * step") + ` AS ends
	FROM (SELECT step, zone, origin, CASE WHEN ` + FirstMomentSQL("origin + (n + 1) * step") + ` <= now
		THEN n + 1 ELSE n END AS n
	FROM (SELECT now, zone, origin, step, CASE WHEN anchor = 0 THEN 0 WHEN origin + n * step > local
		THEN n - 1 ELSE n END AS n
	FROM (SELECT now, zone, anchor, local, origin, ('1 ' || unit)::interval AS step,
		CASE WHEN anchor = 0 THEN 0 ELSE (date_part('year', local) - date_part('year', origin)) * CASE unit
			WHEN 'year' THEN 1 ELSE 12 END
			+ CASE unit WHEN 'year' THEN 0
				ELSE date_part('month', local) - date_part('month', origin) END END AS n
	FROM (SELECT now, unit, zone, anchor, local, CASE WHEN anchor = 0 THEN date_trunc(unit, local)
		ELSE timestamp 'epoch' + anchor * interval '1 day' END AS origin
	FROM (SELECT now, unit, zone, anchor, now AT TIME ZONE zone AS local
	FROM (SELECT (SELECT now FROM clock) AS now, {unit} AS unit, {zone} AS zone,
		{anchor} AS anchor OFFSET 0) p OFFSET 0) p OFFSET 0) p OFFSET 0) p OFFSET 0) p OFFSET 0) p`

// FirstMomentSQL returns firstMoment of a midnight in p.zone as an expression. Postgres converts an ambiguous
// midnight to the second one, so the expression first tries the UTC offset of a day earlier.
func FirstMomentSQL(midnight string) string {
	return `(SELECT CASE WHEN early AT TIME ZONE p.zone = midnight THEN early ELSE late END
		FROM (SELECT midnight, late, (midnight - ((late - interval '24 hours') AT TIME ZONE p.zone
			- (late - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS early
		FROM (SELECT midnight, midnight AT TIME ZONE p.zone AS late
			FROM (SELECT ` + midnight + ` AS midnight OFFSET 0) m OFFSET 0) m OFFSET 0) m)`
}

var calendarWindowSQL = SQL{
	Columns:     windowColumns,
	Returned:    windowReturned,
	Needs:       "unit zone anchor",
	ReadExpires: true,
	Fresh:       "i.granted * {cost}, NULL, w.starts, w.ends",
	Window:      periodSQL,
	Step: windowStepSQL(`CASE WHEN r.window_start >= excluded.expires_at THEN r.expires_at
			ELSE excluded.expires_at END`, `r.window_start < excluded.window_start
		OR r.window_start - (SELECT now FROM clock) > r.expires_at - r.window_start + interval '10 s'`),
	Adjust: "count = " + adjustedCountSQL("greatest(0, r.count)"),
	AdjustWhere: "{now} < r.expires_at AND r.window_start - {now} <= r.expires_at - r.window_start + " +
		"interval '10 s' AND r.window_start > timestamptz '1800-01-01Z' AND coalesce(r.window_start <= " +
		"{claimed}, true)",
	Read: readCalendar,
}

// readCalendar implements SQL.Read for the counts and expires_at.
func readCalendar(cells []Cell, width int, rows []*Row) {
	readCounts(cells, width, rows)
	at := 3
	for _, r := range rows {
		if cells[at].Length == 8 {
			r.Expires = cells[at].Value + PostgresEpoch
		}
		at += width
	}
}
