package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// billingZones has zones with midnights that come twice or never, a skipped day, and odd offsets.
var billingZones = []string{"UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Asia/Beirut",
	"Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns", "Africa/Cairo"}

// billedUsers makes a user for each calendar and zone, and one for each first day and zone, below another
// user and with a limit in another zone. It returns their names.
func billedUsers(d *testDB) (users []string) {
	for i, zone := range billingZones {
		for _, unit := range []string{"day", "week", "month", "year"} {
			name := fmt.Sprint(unit, i)
			d.exec("SELECT rate_limit_tier($1), rate_limit_user($1, tier => $1)", name)
			d.exec(`SELECT rate_limit_rule($1, tiers => ARRAY[$1],
				limits => ARRAY[format('l=5 money/1%s calendar %s', $2::text, $3::text)])`, name, unit, zone)
			users = append(users, name)
		}
	}
	for i, zone := range billingZones {
		for _, day := range []string{"2020-01-01", "2023-02-28", "2024-02-29", "2019-01-30", "2020-12-31"} {
			name := fmt.Sprint(day, i)
			d.exec(`SELECT rate_limit_user($1, tier => $2, period_start => $3::date, time_zone => $4,
				parent => 'week0')`, name, fmt.Sprint("month", (i+1)%len(billingZones)), day, zone)
			users = append(users, name)
		}
	}
	return users
}

// The invoice of a user begins and ends when the counter of its calendar limit in money turns, at each time
// and in each zone, also where the clocks change at midnight.
func TestInvoiceTurnsWithTheCounter(t *testing.T) {
	d := newTestDB(t)
	users := billedUsers(d)
	p := d.newPolicy(policy.Settings{MaxIdentities: len(users)})
	refresh(t, p)
	limits := make([]*ratelimit.Limit, len(users))
	for i, user := range users {
		var v policy.Verdict
		facts := policy.Facts{Method: "POST", Path: "/"}
		if err := p.Evaluate(t.Context(), testTimeout, "", user, &facts, &v); err != nil || len(v.Hits) == 0 {
			t.Fatalf("%s: %v, got %d hits, want one", user, err, len(v.Hits))
		}
		limits[i] = v.Hits[0].Limit
	}
	rapid.Check(t, func(t *rapid.T) {
		drawn := rapid.Int64Range(946684800, 1640995200).Draw(t, "time")
		after := rapid.Int64Range(-90000, 90000).Draw(t, "after")
		var times, want []string
		for i, l := range limits {
			zone, err := time.LoadLocation(l.TimeZone)
			if err != nil {
				t.Fatal(err)
			}
			at := drawn
			if _, change := time.Unix(drawn, 0).In(zone).ZoneBounds(); !change.IsZero() {
				at = change.Unix() + after
			}
			starts, ends := algorithm.Period(l, at*1e6)
			times = append(times, fmt.Sprint(at))
			want = append(want, fmt.Sprint(users[i], " at ", at, ": ", starts/1e6, " ", ends/1e6))
		}
		got := cluster.Query[string](d.t, d.dsn, `SELECT string_agg(format('%s at %s: %s %s', u.u, u.at,
				extract(epoch FROM p.starts)::bigint, extract(epoch FROM p.ends)::bigint), E'\n' ORDER BY u.n)
			FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u(u, at, n)
				JOIN rate_limit_billing($1) b ON b.counted = u.u, LATERAL (SELECT to_timestamp(u.at) AS t) t,
				rate_limit_calendar_periods(b.unit, b.zone, b.day, t.t, t.t) p`,
			users, "{"+strings.Join(times, ",")+"}")
		for i, line := range strings.Split(got, "\n") {
			if i >= len(want) || line != want[i] {
				t.Fatalf("got the invoice of %s, want the windows of the counters\n%s", line,
					strings.Join(want, "\n"))
			}
		}
	})
}
