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

// newUpkeepTestDB creates a database with the tables of the history.
func newUpkeepTestDB(t testing.TB) *testDB {
	t.Helper()
	return openTestDB(t, cluster.Open(t, schema.History))
}

// addDays creates the partitions of n days with a row in each.
func (d *testDB) addDays(first string, n int) {
	d.t.Helper()
	d.exec(fmt.Sprintf(`SELECT rate_limit_make_partition(date '%[1]s' + n)
		FROM generate_series(0, %[2]d - 1) n;
		INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix,
			node) SELECT date '%[1]s'::timestamp AT TIME ZONE 'UTC' + n * interval '1 day', 1, 5,
			'limited', 'web', 'n'
		FROM generate_series(0, %[2]d - 1) n`, first, n))
}

func (d *testDB) upkeep(now string) history.UpkeepReport {
	d.t.Helper()
	report, err := history.Upkeep(context.Background(), d.openDB(), parseTime(d.t, now))
	if err != nil {
		d.t.Fatal(err)
	}
	return report
}

func parseTime(t testing.TB, text string) time.Time {
	t.Helper()
	now, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// partitionDays returns the days in the names of partitions.
func partitionDays(names []string) string {
	var days []string
	for _, name := range names {
		if day, found := strings.CutPrefix(name, "public.rate_limit_audit_"); found {
			days = append(days, day)
		}
	}
	return strings.Join(days, " ")
}

// Upkeep drops the other partitions while a reader uses one.
func TestHeldPartitionStopsNothing(t *testing.T) {
	d := newUpkeepTestDB(t)
	d.addDays("2026-08-01", 3)
	reader := cluster.Connect(d.t, d.dsn)
	if _, err := reader.Exec(context.Background(),
		"BEGIN; SELECT * FROM rate_limit_audit_20260802"); err != nil {
		t.Fatal(err)
	}
	report := d.upkeep("2026-11-21T12:00:00Z")
	want := fmt.Sprintf("public.rate_limit_audit_20260802: held by pid %d", reader.PgConn().PID())
	if len(report.Skipped) != 1 || report.Skipped[0] != want {
		t.Errorf("skipped partitions: got %q, want %q", report.Skipped, want)
	}
	checkEqual(t, "dropped partitions", partitionDays(report.Dropped), "20260801 20260803")
}
