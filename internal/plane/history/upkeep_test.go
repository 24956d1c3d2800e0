package history_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// newUpkeepSite returns a site with the tables of the history.
func newUpkeepSite(t testing.TB) *site {
	t.Helper()
	return siteOn(t, cluster.Open(t, schema.History))
}

// days creates the partitions of some days, with a row in each.
func (s *site) days(first string, n int) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`SELECT rate_limit_make_partition(date '%[1]s' + n)
		FROM generate_series(0, %[2]d - 1) n;
		INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix,
			node) SELECT date '%[1]s'::timestamp AT TIME ZONE 'UTC' + n * interval '1 day', 1, 5,
			'limited', 'web', 'n'
		FROM generate_series(0, %[2]d - 1) n`, first, n))
}

func (s *site) upkeep(now string) history.UpkeepReport {
	s.t.Helper()
	report, err := history.Upkeep(context.Background(), s.db(), at(s.t, now))
	if err != nil {
		s.t.Fatal(err)
	}
	return report
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	now, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// short returns the days of partitions.
func short(names []string) string {
	var all []string
	for _, name := range names {
		if day, found := strings.CutPrefix(name, "public.rate_limit_audit_"); found {
			all = append(all, day)
		}
	}
	return strings.Join(all, " ")
}

// Upkeep drops the other partitions while a reader uses one.
func TestAPartitionThatIsHeldStopsNothing(t *testing.T) {
	s := newUpkeepSite(t)
	s.days("2026-08-01", 3)
	reader := cluster.Connect(s.t, s.dsn)
	if _, err := reader.Exec(context.Background(),
		"BEGIN; SELECT * FROM rate_limit_audit_20260802"); err != nil {
		t.Fatal(err)
	}
	report := s.upkeep("2026-11-21T12:00:00Z")
	if want := fmt.Sprintf("public.rate_limit_audit_20260802: held by pid %d", reader.PgConn().PID()); len(
		report.Skipped) != 1 || report.Skipped[0] != want {
		t.Errorf("got the skipped partitions %q, want %q", report.Skipped, want)
	}
	if short(report.Dropped) != "20260801 20260803" {
		t.Errorf("dropped %s", short(report.Dropped))
	}
}
