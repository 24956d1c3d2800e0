package tables_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Each name of a time zone means the same to Go, to the policy and to decisions in Postgres, in summer and in
// winter, or Go and the policy refuse it.
func TestEachZoneMeansTheSameInGoAndPostgres(t *testing.T) {
	s := sqltest.New(t)
	local := func(day string) string {
		return "date_part('epoch', timestamptz '" + day + "Z' AT TIME ZONE p.zone)"
	}
	zones := s.Query("SELECT concat_ws(' ', n.name, " + local("2020-01-01") + ", " + local("2020-07-01") +
		`, p.zone)
		FROM (SELECT name FROM pg_timezone_names UNION VALUES ('CET'), ('EET'), ('MET'), ('WET')) n,
			LATERAL (SELECT rate_limit_known_zone(n.name) AS zone OFFSET 0) p`)
	accepted := 0
	for line := range strings.SplitSeq(zones, "\n") {
		fields := strings.Fields(line)
		name := fields[0]
		zone, err := ratelimit.ParseTimeZone(name)
		location, unknown := time.LoadLocation(name)
		switch {
		case unknown != nil: // Postgres has newer zones
		case (err == nil) != (len(fields) > 1):
			t.Errorf("%s: Go has %q, %v, and Postgres %q", name, zone, err, fields[1:])
		case err == nil:
			accepted++
			for i, month := range []time.Month{time.January, time.July} {
				at := time.Date(2020, month, 1, 0, 0, 0, 0, time.UTC)
				_, offset := at.In(location).Zone()
				if want := at.Unix() + int64(offset); fields[1+i] != strconv.FormatInt(want, 10) {
					t.Errorf("%s at %v: Postgres has the local time %s, want %d", name, at, fields[1+i], want)
				}
			}
			if fields[3] != zone {
				t.Errorf("%s: Postgres has the name %s, want %s", name, fields[3], zone)
			}
		}
	}
	if accepted < 400 {
		t.Errorf("Go and Postgres accept %d names, want at least 400", accepted)
	}
}
