package history_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// newUpkeepSite is a site with the tables of the history.
func newUpkeepSite(t testing.TB) *site {
	t.Helper()
	return siteOn(t, cluster.Open(t, schema.History))
}

// days makes the partitions of some days, with a row in each.
func (s *site) days(first string, n int) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`SELECT rate_limit_make_partition(date '%[1]s' + n)
		FROM generate_series(0, %[2]d - 1) n;
		INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix,
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

// short are the days of partitions.
func short(names []string) string {
	var all []string
	for _, name := range names {
		if day, found := strings.CutPrefix(name, "public.rate_limit_audit_"); found {
			all = append(all, day)
		}
	}
	return strings.Join(all, " ")
}

// leavePending has the detaching of a partition interrupted, as a process that is killed would.
func (s *site) leavePending(partition string) {
	s.t.Helper()
	ctx := context.Background()
	reader, conn := cluster.Connect(s.t, s.dsn), cluster.Connect(s.t, s.dsn)
	if _, err := reader.Exec(ctx,
		"BEGIN; LOCK TABLE ONLY rate_limit_audit IN ACCESS SHARE MODE"); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "ALTER TABLE rate_limit_audit DETACH PARTITION "+partition+" CONCURRENTLY")
		ended <- err
	}()
	const pending = "SELECT coalesce(string_agg(name, ' '), '') FROM rate_limit_partitions() WHERE pending"
	await.Within(s.t, time.Minute, "the partition to be pending",
		func() bool { return s.text(pending) == "public."+partition })
	s.exec(fmt.Sprintf("SELECT pg_cancel_backend(%d)", conn.PgConn().PID()))
	if err := <-ended; err == nil {
		s.t.Fatal("the partition is detached")
	}
	if _, err := reader.Exec(ctx, "COMMIT"); err != nil {
		s.t.Fatal(err)
	}
}

// An interrupted DETACH is completed: of a partition that is past its retention, which is then
// dropped, and of one that is not, which stays.
func TestAnInterruptedDetachIsCompleted(t *testing.T) {
	s := newUpkeepSite(t)
	s.days("2026-08-01", 3)
	s.leavePending("rate_limit_audit_20260802")
	report := s.upkeep("2026-11-21T12:00:00Z")
	if short(report.Dropped) != "20260801 20260802 20260803" ||
		short(report.Detached) != "20260802 20260801 20260803" {
		t.Errorf("the report is %+v", report)
	}
	s.leavePending("rate_limit_audit_20261122")
	report = s.upkeep("2026-11-21T12:00:00Z")
	if short(report.Dropped) != "" || short(report.Detached) != "20261122" || len(report.Skipped) > 0 {
		t.Errorf("the report is %+v", report)
	}
	if got := s.text(
		"SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_audit_20261122'"); got != "1" {
		t.Error("a partition that is not past its retention is gone")
	}
}

// A pending partition that a reader holds does not keep the others.
func TestAPendingPartitionThatIsHeldStopsNothing(t *testing.T) {
	s := newUpkeepSite(t)
	s.days("2026-08-01", 3)
	s.leavePending("rate_limit_audit_20260802")
	reader := cluster.Connect(s.t, s.dsn)
	if _, err := reader.Exec(context.Background(),
		"BEGIN; SELECT * FROM rate_limit_audit_20260802"); err != nil {
		t.Fatal(err)
	}
	report := s.upkeep("2026-11-21T12:00:00Z")
	if want := fmt.Sprintf("public.rate_limit_audit_20260802: held by pid %d", reader.PgConn().PID()); len(
		report.Skipped) != 1 || report.Skipped[0] != want {
		t.Errorf("skipped %q, want %q", report.Skipped, want)
	}
	if short(report.Dropped) != "20260801 20260803" {
		t.Errorf("dropped %s", short(report.Dropped))
	}
}
