package schema_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// newHistory makes a database with the tables of the history alone.
func newHistory(t testing.TB) *site {
	t.Helper()
	return open(t, schema.History)
}

// row is a row of the audit log.
func row(at string) string {
	return fmt.Sprintf("INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node) "+
		"VALUES ('%s', 1, 5, 'limited', 'web', 'n');", at)
}

// On each day there are the partitions of the next days, before the first row needs them: at the
// end of a day, a month and a year, and on a leap day, whatever time zone the session has.
func TestPartitionsAreThereBeforeTheFirstRow(t *testing.T) {
	for _, zone := range []string{"America/New_York", "Pacific/Kiritimati", "UTC"} {
		if testing.Short() && zone != "America/New_York" {
			break
		}
		s := newHistory(t)
		s.exec("SET TimeZone = '" + zone + "'; SET DateStyle = 'German'")
		for _, now := range []string{"2026-11-21 23:59:59.999999Z", "2026-11-30 23:59:59.999999Z",
			"2026-12-31 23:59:59.999999Z", "2027-01-01 00:00:00Z",
			"2028-02-28 23:59:59.999999Z", "2028-02-29 23:59:59.999999Z", "2100-02-28 12:00:00Z"} {
			s.exec("SELECT rate_limit_upkeep('" + now + "')")
			first, err := time.Parse("2006-01-02 15:04:05.999999Z", now)
			if err != nil {
				t.Fatal(err)
			}
			midnight := first.Truncate(24 * time.Hour)
			for day := range 8 {
				begin := midnight.AddDate(0, 0, day)
				for _, at := range []time.Time{begin, begin.Add(24*time.Hour - time.Microsecond)} {
					stamp := at.Format("2006-01-02 15:04:05.999999Z")
					s.exec(row(stamp))
					s.want("SELECT DISTINCT tableoid::regclass FROM rate_limit_audit WHERE "+
						"time = '"+stamp+"'", "rate_limit_audit_"+at.Format("20060102"))
				}
			}
			s.want("SELECT what, name FROM rate_limit_upkeep('"+now+"') WHERE what = 'made'", "")
		}
		s.want("SELECT count(*) FROM rate_limit_audit_20280229 WHERE (time AT TIME ZONE 'UTC')::date = "+
			"'2028-02-29'", s.text("SELECT count(*) FROM rate_limit_audit_20280229"))
	}
}

// With audit all, almost every row is of a request that passed. It has no entry in the index of
// outcomes, and a question about refusals uses the index.
func TestWhatPassedIsNotInTheIndexOfOutcomes(t *testing.T) {
	s := newHistory(t)
	s.exec("SELECT rate_limit_make_partition('2026-11-21')")
	s.exec(`INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node)
		SELECT timestamptz '2026-11-21Z' + i * interval '1 second', 1, 5, CASE WHEN i % 1000 = 0 THEN
			'limited' ELSE 'allowed' END, 'web', 'n' FROM generate_series(1, 20000) i`)
	s.exec("VACUUM ANALYZE rate_limit_audit_20261121")
	s.want("SELECT reltuples FROM pg_class WHERE relname = 'rate_limit_audit_20261121_outcome_time_idx'",
		"20")
	s.exec("PREPARE refusals (text[]) AS SELECT * FROM rate_limit_audit WHERE outcome = ANY ($1)")
	for range 7 { // the server may plan without the values after five times
		if plan := s.text("EXPLAIN EXECUTE refusals ('{limited,blocked}')"); !strings.Contains(plan,
			"rate_limit_audit_20261121_outcome_time_idx") {
			t.Fatal(plan)
		}
	}
}

// Nine proxies that need the same partitions at once all get them, and each is made once.
func TestPartitionsAreMadeOnceByManyAtOnce(t *testing.T) {
	s := newHistory(t)
	var group sync.WaitGroup
	made := make([]string, 9)
	for i := range made {
		conn := cluster.Connect(s.t, s.dsn)
		group.Go(func() {
			// Some of them in a transaction with a snapshot of its own.
			sql := "SELECT rate_limit_make_partition(d::date) FROM generate_series(timestamp '2026-12-28', " +
				"'2027-01-03', '1 day') d"
			if i%3 == 0 {
				sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; " + sql + "; COMMIT"
			}
			results, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
			if err != nil {
				t.Error(err)
			}
			for _, result := range results {
				for _, row := range result.Rows {
					made[i] += string(row[0])
				}
			}
		})
	}
	group.Wait()
	if n := strings.Count(strings.Join(made, ""), "public.rate_limit_audit_20"); n != 7 {
		t.Errorf("%d partitions were made, want 7: %q", n, made)
	}
	s.want("SELECT count(*), min(begins) = '2026-12-28Z', max(ends) = '2027-01-04Z' FROM "+
		"rate_limit_partitions()", "7 t t")
}

// The history lies in the first schema of the search_path, its functions find it from anywhere, and
// a caller's own tables do not take its place.
func TestTheHistoryInAnotherSchema(t *testing.T) {
	s := open(t)
	s.exec(`CREATE SCHEMA "a.Tenant"; SET search_path = "a.Tenant";` + schema.History +
		`RESET search_path; CREATE TEMPORARY TABLE rate_limit_metrics (x int);
		CREATE TEMPORARY TABLE rate_limit_retention (what text)`)
	s.want(`SELECT what, name FROM "a.Tenant".rate_limit_upkeep('2026-11-21') LIMIT 1`,
		`made "a.Tenant".rate_limit_audit_20261121`)
	s.want(`SELECT count(*) FROM "a.Tenant".rate_limit_drop_expired('2027-02-20') WHERE held_by IS NULL
		AND name ~ 'audit'`, "1")
	s.want("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "0")
}
