package reports

import (
	"net/http"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// calendar is a zone that counts by the calendar.
func calendar(limit string) string { return "algorithm fixed_window\nlimit " + limit }

// refusedCalendars returns a site for each limit that is refused by name.
func refusedCalendars(limits ...string) (sites []site) {
	for _, limit := range limits {
		sites = append(sites, site{zones: []string{calendar(limit)}, refused: `limit: "` + limit + `"`})
	}
	return sites
}

var calendars = []report{
	{"R54", "docker-library/postgres#1355; pgautoupgrade/docker-pgautoupgrade#159", append(
		refusedCalendars("2 1d calendar localtime", "2 1d calendar posixrules",
			"2 1d calendar right/Europe/Berlin", "2 1d calendar posix/Europe/Berlin"),
		site{zones: []string{calendar("2 1d calendar US/Eastern")}, asks: []ask{{n: 6}},
			want: "200×2 429×4", check: endsAtMidnight("America/New_York")})},
	{"R58", "ProfessionalWiki/MediaWiki-MCP-Server#557", []site{{
		handler: "dsn DSN&search_path=FAKE,public,pg_catalog", zones: []string{calendar("3 1m")},
		sql: `CREATE SCHEMA "FAKE";
			CREATE UNLOGGED TABLE "FAKE".clock (time) AS SELECT timestamptz '2026-07-01 12:00+00';
			CREATE FUNCTION "FAKE".clock_timestamp() RETURNS timestamptz LANGUAGE sql
			AS $$ SELECT time FROM "FAKE".clock $$;`,
		asks: []ask{{n: 4, want: "200×3 429×1"}}, check: jumps,
	}}},
}

// set sets the clock of a site.
func (v *visit) set(clock string) {
	v.Helper()
	cluster.Execute(v, v.dsn, `UPDATE "`+v.id+`".clock SET time = '2026-07-01 `+clock+`+00'`)
}

// jumps checks what a key gets whose database has a clock that is an hour ahead for a moment, and then goes
// back by 20 seconds.
func jumps(v *visit) {
	c := v.dial()
	passes := func() bool { return c.ask("GET /", "").Status == http.StatusOK }
	admitted := 0
	v.set("13:00:00")
	v.Await("a quota of the hour ahead", passes)
	for admitted = 1; passes(); {
		admitted++
	}
	v.set("12:00:30")
	for range 10 {
		if passes() {
			admitted++
		}
	}
	v.set("12:00:10")
	for range 10 {
		if passes() {
			admitted++
		}
	}
	if admitted > 6 {
		v.Errorf("%d more requests passed, want the 3 of the hour ahead and 3 at most", admitted)
	}
	v.set("12:01:41") // a window and 10 seconds after the clock was right again
	v.Await("the key to be admitted again", passes)
}

// endsAtMidnight checks that the last request may be repeated at midnight of a time zone.
func endsAtMidnight(zone string) func(*visit) {
	return func(v *visit) {
		v.Helper()
		place, err := time.LoadLocation(zone)
		if err != nil {
			v.Fatal(err)
		}
		wait, err := strconv.Atoi(v.got[len(v.got)-1].Header.Get("Retry-After"))
		end := time.Now().Add(time.Duration(wait) * time.Second).In(place)
		if near := end.Add(30 * time.Minute); err != nil || near.Hour() != 0 {
			v.Errorf("it ends at %v, want midnight in %s", end, zone)
		}
	}
}
