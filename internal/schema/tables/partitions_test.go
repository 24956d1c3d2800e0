package tables_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

func TestTranscripts(t *testing.T) { sqltest.ReplayTranscripts(t) }

// newHistory makes a database with only the tables of the history.
func newHistory(t testing.TB) *sqltest.DB {
	t.Helper()
	return sqltest.Open(t, schema.File)
}

// Upkeep creates the partitions of today and the next 7 days, so that no row lacks its partition: at the end
// of a day, a month and a year, and on a leap day, with any time zone of the session. A second upkeep creates
// nothing.
func TestPartitionsAreThereBeforeTheFirstRow(t *testing.T) {
	for _, zone := range []string{"America/New_York", "Pacific/Kiritimati", "UTC"} {
		if testing.Short() && zone != "America/New_York" {
			break
		}
		s := newHistory(t)
		s.Exec("SET TimeZone = '" + zone + "'; SET DateStyle = 'German'")
		for _, now := range []string{"2026-11-21 23:59:59.999999Z", "2026-11-30 23:59:59.999999Z",
			"2026-12-31 23:59:59.999999Z", "2027-01-01 00:00:00Z",
			"2028-02-28 23:59:59.999999Z", "2028-02-29 23:59:59.999999Z", "2100-02-28 12:00:00Z"} {
			s.Exec("SELECT rate_limit_upkeep('" + now + "')")
			first, err := time.Parse("2006-01-02 15:04:05.999999Z", now)
			if err != nil {
				t.Fatal(err)
			}
			midnight := first.Truncate(24 * time.Hour)
			for day := range 8 {
				begin := midnight.AddDate(0, 0, day)
				for _, at := range []time.Time{begin, begin.Add(24*time.Hour - time.Microsecond)} {
					stamp := at.Format("2006-01-02 15:04:05.999999Z")
					s.Exec("INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node) " +
						"VALUES ('" + stamp + "', 1, 5, 'limited', 'web', 'n')")
					s.Expect("SELECT DISTINCT tableoid::regclass FROM rate_limit_audit WHERE "+
						"time = '"+stamp+"'", "rate_limit_audit_"+at.Format("20060102"))
				}
			}
			s.Expect("SELECT what, name FROM rate_limit_upkeep('"+now+"') WHERE what = 'made'", "")
		}
		s.Expect("SELECT count(*) FROM rate_limit_audit_20280229 WHERE (time AT TIME ZONE 'UTC')::date = "+
			"'2028-02-29'", s.Query("SELECT count(*) FROM rate_limit_audit_20280229"))
	}
}

// The index of outcomes has no entries for admitted requests. With the setting `audit all`, these are almost
// all rows. Queries for refusals use the index.
func TestOutcomeIndexOmitsAdmittedRequests(t *testing.T) {
	s := newHistory(t)
	s.Exec("SELECT rate_limit_make_partition('2026-11-21')")
	s.Exec(`INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node)
		SELECT timestamptz '2026-11-21Z' + i * interval '1 second', 1, 5, CASE WHEN i % 1000 = 0 THEN
			'limited' ELSE 'admitted' END, 'web', 'n' FROM generate_series(1, 20000) i`)
	s.Exec("VACUUM ANALYZE rate_limit_audit_20261121")
	s.Expect("SELECT reltuples FROM pg_class WHERE relname = 'rate_limit_audit_20261121_outcome_time_idx'",
		"20")
	s.Exec("PREPARE refusals (text[]) AS SELECT * FROM rate_limit_audit WHERE outcome = ANY ($1)")
	for range 7 { // the server may plan without the values after five times
		plan := s.Query("EXPLAIN EXECUTE refusals ('{limited,blocked}')")
		if !strings.Contains(plan, "rate_limit_audit_20261121_outcome_time_idx") {
			t.Fatalf("got the plan\n%s\nwant a scan of the index of outcomes", plan)
		}
	}
}

// Nine proxies that need the same partitions concurrently make each partition once.
func TestConcurrentProxiesMakePartitionsOnce(t *testing.T) {
	s := newHistory(t)
	var group sync.WaitGroup
	made := make([]string, 9)
	for i := range made {
		conn := cluster.Connect(t, s.DSN)
		group.Go(func() {
			// Some proxies use a transaction with its own snapshot.
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
	s.Expect("SELECT count(*), min(begins) = '2026-12-28Z', max(ends) = '2027-01-04Z' FROM "+
		"rate_limit_partitions()", "7 t t")
}
