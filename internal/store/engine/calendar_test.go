package engine_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var calendarUnits = map[ratelimit.Calendar]string{ratelimit.Day: "day", ratelimit.Week: "week",
	ratelimit.Month: "month", ratelimit.Year: "year"}

// calendarMoment is a time in a zone, and a limit on its calendar.
type calendarMoment struct {
	location *time.Location
	limit    ratelimit.Limit
	now      int64
}

// period is what Postgres computes for a moment: Start and End of the period around it, and the local times
// of the moment, of Start and of End.
type period struct{ Start, End, Local, StartLocal, EndLocal int64 }

// periodsInSQL returns the periods that Postgres computes for moments.
func periodsInSQL(s *testDB, moments []calendarMoment) []period {
	s.t.Helper()
	var zones, calendars []string
	var times, anchors []int64
	for _, m := range moments {
		zones, calendars = append(zones, m.limit.Zone), append(calendars, calendarUnits[m.limit.Calendar])
		times, anchors = append(times, m.now), append(anchors, m.limit.Anchor)
	}
	micros := func(at string) string { return "(date_part('epoch', " + at + ") * 1000000)::bigint" }
	rows, err := s.conn.Query(context.Background(), "SELECT "+micros("w.starts")+", "+micros("w.ends")+", "+
		micros("i.now AT TIME ZONE i.zone")+", "+micros("w.starts AT TIME ZONE i.zone")+", "+
		micros("w.ends AT TIME ZONE i.zone")+`
		FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
			AS u(unit, zone, at, anchor, n),
		LATERAL (SELECT u.unit, u.zone, timestamptz 'epoch' + u.at * interval '1 microsecond' AS now) i,
		LATERAL (`+algorithm.PeriodSQL("i.now", "i.unit", "i.zone", "u.anchor")+`) w(starts, ends)
		ORDER BY u.n`, calendars, zones, times, anchors)
	if err != nil {
		s.t.Fatal(err)
	}
	periods, err := pgx.CollectRows(rows, pgx.RowToStructByPos[period])
	if err != nil || len(periods) != len(moments) {
		s.t.Fatalf("got %d periods, want %d: %v", len(periods), len(moments), err)
	}
	return periods
}

// localTime returns the local time in the zone, in microseconds, by Go's zone files.
func (m *calendarMoment) localTime(us int64) int64 {
	_, offset := time.UnixMicro(us).In(m.location).Zone()
	return us + int64(offset)*second
}

// commonZones returns the zones of limits that Postgres has, with the times at which their clocks change.
// If several zones are equal from 2000 to 2035, it returns only one of them.
func commonZones(s *testDB) map[string][]int64 {
	s.t.Helper()
	zones := map[string][]int64{}
	seen := map[string]bool{}
	for _, name := range cluster.Texts(s.t, s.dsn, "SELECT name FROM pg_timezone_names ORDER BY name") {
		name, err := ratelimit.ParseZone(name)
		if err != nil {
			continue
		}
		location, err := time.LoadLocation(name)
		if err != nil {
			s.t.Fatal(err)
		}
		at := time.Date(2000, 1, 1, 0, 0, 0, 0, location)
		signature, changes := at.Format("-0700"), []int64(nil)
		for {
			_, at = at.ZoneBounds()
			if at.IsZero() || at.Year() > 2035 {
				break
			}
			signature += at.Format(" 2006-01-02T15:04:05-07:00:00")
			changes = append(changes, at.UnixMicro())
		}
		if !seen[signature] {
			seen[signature] = true
			zones[name] = changes
		}
	}
	if len(zones) < 150 {
		s.t.Fatalf("Go and Postgres share %d zones, want at least 150", len(zones))
	}
	return zones
}

// drawMoments draws moments in a zone: around the given changes of its clocks, and near the ends of random
// months from 2000 to 2099. Half of the periods have an anchor, often the day of the change or the last day
// of a month.
func drawMoments(random *rand.Rand, name string, changes []int64) (moments []calendarMoment) {
	location, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	add := func(now int64, near time.Time) {
		l := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Zone: name, Events: 1,
			Calendar: []ratelimit.Calendar{ratelimit.Day, ratelimit.Week, ratelimit.Month,
				ratelimit.Year}[random.IntN(4)]}
		if random.IntN(2) == 0 {
			l.Anchor = ratelimit.AnchorOn(l.Calendar, near.AddDate(0, 0, random.IntN(3)-1))
		}
		moments = append(moments, calendarMoment{location, l, now})
	}
	const hour = 3600 * second
	for _, change := range changes {
		for _, after := range []int64{-25 * hour, -hour, -1, 0, 1, hour / 2, hour - 1, hour, 2 * hour,
			24 * hour} {
			for range 2 {
				add(change+after, time.UnixMicro(change).In(location))
			}
		}
	}
	for year := 2000; year < 2100; year++ {
		for range 6 {
			near := time.Date(year, time.Month(1+random.IntN(12)), 27+random.IntN(5), random.IntN(24), 0, 0,
				0, time.UTC)
			add(near.UnixMicro(), near)
		}
	}
	return moments
}

// Go and Postgres compute the same calendar windows in all time zones, around each change of their clocks.
func TestCalendarOfEveryZone(t *testing.T) {
	t.Parallel()
	s, random := newTestDB(t), seed.New(t)
	changes := commonZones(s)
	zones := slices.Sorted(maps.Keys(changes))
	random.Shuffle(len(zones), func(i, j int) { zones[i], zones[j] = zones[j], zones[i] })
	if testing.Short() {
		zones = zones[:30]
	}
	differing, total := 0, 0
	for _, zone := range zones {
		moments := drawMoments(random, zone, changes[zone])
		for i, p := range periodsInSQL(s, moments) {
			m := &moments[i]
			total++
			if m.localTime(m.now) != p.Local || m.localTime(p.Start) != p.StartLocal ||
				m.localTime(p.End) != p.EndLocal {
				differing++ // Go and Postgres may have different versions of the zone files
				continue
			}
			start, end := algorithm.Period(&m.limit, m.now)
			if start > m.now || end <= m.now {
				t.Errorf("%+v at %d: the window is %d to %d, want one around it", m.limit, m.now, start, end)
			}
			if start != p.Start || end != p.End {
				t.Errorf("%+v at %d: the window in Go is %d to %d, want %d to %d as in Postgres", m.limit,
					m.now, start, end, p.Start, p.End)
			}
		}
	}
	if differing > total/20 {
		t.Errorf("zones differ at %d of %d moments, want at most 5 %%", differing, total)
	}
	t.Logf("%d moments, %d in zones that differ", total, differing)
}
