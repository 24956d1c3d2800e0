package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var units = map[ratelimit.Calendar]string{ratelimit.Day: "day", ratelimit.Week: "week",
	ratelimit.Month: "month", ratelimit.Year: "year"}

// moment is a time in a zone, and what both sides say of it.
type moment struct {
	zone                 string
	location             *time.Location
	unit                 ratelimit.Calendar
	anchor               int64
	now                  int64
	goStart, goEnd       int64
	sqlStart, sqlEnd     int64
	sqlLocal, sqlEndsLoc int64 // the clocks' time in the zone, as Postgres has it
}

func (m *moment) String() string {
	at := func(us int64) string {
		return time.UnixMicro(us).In(m.location).Format("2006-01-02T15:04:05.999999Z07:00:00")
	}
	return fmt.Sprintf("%s, %s of %s, anchor %d: from %s to %s, in Postgres from %s to %s", m.zone,
		units[m.unit], at(m.now), m.anchor,
		at(m.goStart), at(m.goEnd), at(m.sqlStart), at(m.sqlEnd))
}

// ask fills in what both sides say.
func ask(t *testing.T, s *site, moments []*moment) {
	t.Helper()
	zones, unitNames, times, anchors := make([]string, len(moments)), make([]string, len(moments)),
		make([]int64, len(moments)), make([]int64, len(moments))
	for i, m := range moments {
		zones[i], unitNames[i], times[i], anchors[i] = m.zone, units[m.unit], m.now, m.anchor
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Calendar: m.unit, Zone: m.zone,
			Anchor: m.anchor, Events: 1}
		m.goStart, m.goEnd = algorithm.Period(l, m.now)
	}
	rows, err := s.conn.Query(context.Background(), `SELECT (date_part('epoch', w.starts) * 1000000)::bigint, (date_part('epoch', w.ends) * 1000000)::bigint,
			(date_part('epoch', i.now AT TIME ZONE i.zone) * 1000000)::bigint, (date_part('epoch', w.ends AT TIME ZONE i.zone) * 1000000)::bigint
		FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS u(unit, zone, at, anchor, n),
		LATERAL (SELECT u.unit, u.zone, timestamptz 'epoch' + u.at * interval '1 microsecond' AS now) i,
		LATERAL (`+algorithm.PeriodSQL("i.now", "i.unit", "i.zone", "u.anchor")+`) w(starts, ends) ORDER BY u.n`, unitNames, zones, times, anchors)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for _, m := range moments {
		if !rows.Next() {
			break
		}
		if err := rows.Scan(&m.sqlStart, &m.sqlEnd, &m.sqlLocal, &m.sqlEndsLoc); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// sameZone reports whether both sides know the same of the zone at that time:
// their databases may be of different years.
func (m *moment) sameZone() bool {
	local := func(us int64) int64 {
		t := time.UnixMicro(us)
		_, offset := t.In(m.location).Zone()
		return us + int64(offset)*second
	}
	return local(m.now) == m.sqlLocal && local(m.sqlEnd) == m.sqlEndsLoc
}

// commonZones are the zones that both sides know, one of those that are the same
// from 2000 to 2035, with the times at which their clocks change.
func commonZones(t *testing.T, s *site) map[string][]int64 {
	rows, err := s.conn.Query(context.Background(), "SELECT name FROM pg_timezone_names ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	zones := map[string][]int64{}
	seen := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		location, err := time.LoadLocation(name)
		if err != nil || name == "Local" || name == "localtime" {
			continue
		}
		var changes []int64
		at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		_, offset := at.In(location).Zone()
		whole := fmt.Sprint(offset)
		for {
			_, end := at.In(location).ZoneBounds()
			if end.IsZero() || end.Year() > 2035 {
				break
			}
			_, offset := end.Zone()
			whole += fmt.Sprint(" ", end.Unix(), " ", offset)
			changes = append(changes, end.UnixMicro())
			at = end
		}
		if !seen[whole] {
			seen[whole] = true
			zones[name] = changes
		}
	}
	if rows.Err() != nil || len(zones) < 150 {
		t.Fatalf("both know only %d zones: %v", len(zones), rows.Err())
	}
	return zones
}

// TestCalendarOfEveryZone compares the windows on the calendar that Go and
// Postgres compute, in all time zones, around each change of their clocks.
func TestCalendarOfEveryZone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	hour := 3600 * second
	unequal, unknown, total := 0, 0, 0
	zones := 0
	for name, changes := range commonZones(t, s) {
		if zones++; testing.Short() && zones > 30 { // others each time
			break
		}
		location, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		var moments []*moment
		add := func(now int64, unit ratelimit.Calendar) {
			moments = append(moments, &moment{zone: name, location: location, now: now, unit: unit})
		}
		for _, change := range changes {
			for _, after := range []int64{-25 * hour, -hour, -1, 0, 1, hour / 2, hour - 1, hour, 2 * hour,
				24 * hour} {
				add(change+after, ratelimit.Day)
			}
			add(change, ratelimit.Week)
			add(change-1, ratelimit.Month)
			add(change+hour/2, ratelimit.Year)
		}
		for year := 2000; year < 2036; year++ { // leap years, ends of months and years
			at := time.Date(year, time.Month(1+year%12), 28+year%4, year%24, 0, 0, 0, time.UTC).UnixMicro()
			for unit := range units {
				add(at, unit)
			}
		}
		for year := 2000; year < 2100; year++ { // far beyond what zone files list
			add(time.Date(year, 12, 31, 12, 0, 0, 0, time.UTC).UnixMicro(), ratelimit.Day)
			add(time.Date(year, 12, 31, 12, 0, 0, 0, time.UTC).UnixMicro(), ratelimit.Month)
		}
		// Periods that begin on a day of their own: on each change of the clocks, and on each
		// last day of a month.
		anchored := func(now int64, unit ratelimit.Calendar, day time.Time) {
			if anchor := ratelimit.AnchorOn(unit, day); anchor != 0 {
				moments = append(moments,
					&moment{zone: name, location: location, now: now, unit: unit, anchor: anchor})
			}
		}
		for i, change := range changes {
			day := time.UnixMicro(change).In(location)
			for _, after := range []int64{-25 * hour, -1, 0, hour / 2, hour, 24 * hour} {
				anchored(change+after, ratelimit.Month, day)
				anchored(change+after, []ratelimit.Calendar{ratelimit.Month, ratelimit.Year}[i%2],
					day.AddDate(0, 0, 1))
			}
		}
		for year := 2000; year < 2036; year++ {
			for day := 27; day < 32; day++ {
				at := time.Date(year, time.Month(1+(year+day)%12), day+year%5, year%24, 0, 0, 0,
					time.UTC).UnixMicro()
				anchored(at, ratelimit.Month, time.Date(2000, 1, day, 0, 0, 0, 0, time.UTC))
				anchored(at, ratelimit.Year, time.Date(2000, 2, day, 0, 0, 0, 0, time.UTC))
			}
		}
		ask(t, s, moments)
		for _, m := range moments {
			total++
			if !m.sameZone() {
				unknown++
				continue
			}
			if m.goStart != m.sqlStart || m.goEnd != m.sqlEnd || m.goStart > m.now || m.goEnd <= m.now {
				if unequal++; unequal <= 30 {
					t.Error(m)
				}
			}
		}
	}
	if unknown > total/20 {
		t.Errorf("of %d moments, the two know different things of the zone at %d", total, unknown)
	}
	t.Logf("%d moments, %d unequal, %d in zones of which the two know different things", total, unequal,
		unknown)
}
