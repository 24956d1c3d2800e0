package history_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// checkNothingLost checks that each of the added records is either written or counted as dropped.
func checkNothingLost(t testing.TB, d *testDB, w *history.Writer, added int64) {
	t.Helper()
	stats := w.Stats()
	if stats.Pending != 0 || stats.Written+stats.Dropped != added {
		t.Errorf("Stats: got %+v, want %d written or dropped", stats, added)
	}
	check.Equal(t, "rows, minutes and days of users", d.Query(`SELECT
		(SELECT sum(count) FROM rate_limit_audit)::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute')::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics_day WHERE user_id > '')::bigint`),
		fmt.Sprint(stats.Written, added, added))
	check.Equal(t, "rate_limit_writers", d.Query("SELECT written, dropped FROM rate_limit_writers"),
		fmt.Sprint(stats.Written, stats.Dropped))
}

// faultyDB loses some of the calls that write parcels.
type faultyDB struct {
	pgdb.DB
	calls    int
	answers  func(call int) bool
	executes bool // a call takes effect even without an answer
}

func (d *faultyDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	if !strings.Contains(statements[0].SQL, "begin_batch") {
		return d.DB.Run(ctx, timeout, statements)
	}
	d.calls++
	answers := d.answers(d.calls)
	if answers || d.executes {
		if err := d.DB.Run(ctx, timeout, statements); err != nil || answers {
			return err
		}
	}
	for _, s := range statements {
		s.Err, s.Code = pgdb.ErrConnectionLost, ""
	}
	return pgdb.ErrConnectionLost
}

// Each record that is added during an outage is either in the tables or counted as dropped. A parcel with an
// unknown result is sent again with the same number, and written once. Records that are added before the
// result is known go into another parcel.
func TestOutageDropsOldestRows(t *testing.T) {
	for name, test := range map[string]struct {
		db    faultyDB
		drops bool
	}{
		"an outage": {drops: true,
			db: faultyDB{answers: func(call int) bool { return call < 3 || call > 12 }}},
		"unknown results": {
			db: faultyDB{answers: func(call int) bool { return call%3 == 0 }, executes: true}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestDB(t)
			test.db.DB = d.OpenDB("")
			const rounds, perRound, maxPending = 20, 100, 400
			w := d.newWriterOn(&test.db, history.Settings{})
			history.SetMaxPending(w, maxPending)
			for round := range rounds {
				for i := range perRound {
					history.Add(w, &history.Record{Time: baseTime.Add(time.Duration(round) * time.Second),
						Outcome: outcome.Kind(i % 2), Key: fmt.Sprint("k", i), User: "anna",
						Audit: auditAll})
				}
				_ = w.Flush(context.Background())
				if stats := w.Stats(); stats.Pending > maxPending+perRound {
					t.Errorf("Pending: got %d, want at most %d", stats.Pending, maxPending+perRound)
				}
			}
			await.Within(t, time.Minute, "a flush",
				func() bool { return w.Flush(context.Background()) == nil })
			checkNothingLost(t, d, w, rounds*perRound)
			// The rows of the last rounds, as many as fit into memory, are in the audit log.
			last := fmt.Sprintf("SELECT count(*) FROM rate_limit_audit WHERE time > timestamptz '%s'",
				baseTime.Add((rounds-maxPending/perRound-1)*time.Second).Format(time.RFC3339Nano))
			check.Equal(t, "newest rows", d.Query(last), fmt.Sprint(maxPending))
			if stats := w.Stats(); (stats.Dropped > 0) != test.drops {
				t.Errorf("Stats: got %+v, want drops: %v", stats, test.drops)
			}
			if reports := d.reportedErrors(); len(reports) == 0 || len(reports) > 3 {
				t.Errorf("reported errors: got %q, want 1 to 3", reports)
			}
		})
	}
}

// A row that the server rejects is dropped after it has failed in a parcel of its own. All other rows are
// written.
func TestRejectedRowStopsNoOther(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	flush(t, w)
	d.Exec("ALTER TABLE rate_limit_audit ADD CONSTRAINT no_evil CHECK (path IS DISTINCT FROM '/evil')")
	d.Exec("ALTER TABLE rate_limit_metrics ADD CONSTRAINT no_evil CHECK (user_id <> 'evil')")
	for i := 0; i < 500; i++ {
		r := history.Record{Time: baseTime, Outcome: outcome.Admitted, User: fmt.Sprint("u", i%9),
			Endpoint: fmt.Sprint("e", i%5), Path: "/", Audit: auditAll}
		if i == 100 || i == 101 || i == 400 {
			r.Path = "/evil"
		}
		if i%100 == 50 {
			r.User = "evil"
		}
		history.Add(w, &r)
	}
	flush(t, w)
	// Of 500 records, the audit log rejects the 3 with the path /evil, and the metrics the 5 of the user
	// evil.
	check.Equal(t, "sums", d.Query(`SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT sum(requests)
		FROM rate_limit_metrics WHERE granularity = 'hour')::bigint`), "497 495")
	stats := w.Stats()
	check.Equal(t, "counts", fmt.Sprint(stats.Written, stats.Dropped, stats.DroppedMetrics, stats.Pending),
		"497 3 5 0")
	check.Equal(t, "rate_limit_writers", d.Query("SELECT written, dropped FROM rate_limit_writers"),
		"497 3")
	reports := d.reportedErrors()
	if len(reports) != 1 || !strings.Contains(reports[0], "dropped 1 records") {
		t.Errorf("reported errors: got %q, want one about 1 dropped record", reports)
	}
}

// A flush ends though the database rejects each parcel, and even the report of what was dropped.
func TestFlushEndsIfAllIsRejected(t *testing.T) {
	reject := func(_ context.Context, _ time.Duration, statements []*pgdb.Statement) error {
		for _, s := range statements {
			s.Err, s.Code = errors.New("invalid byte sequence"), "22021"
		}
		return nil
	}
	w := history.New(fakedb.Func(reject), history.Settings{DisableMigration: true})
	defer w.Close()
	for i := 0; i < 3; i++ {
		history.Add(w, &history.Record{Time: baseTime.Add(time.Duration(i) * time.Second), Audit: auditAll})
	}
	if err := w.Flush(context.Background()); err == nil {
		t.Error("Flush: got nil, want an error")
	}
	check.Equal(t, "dropped", w.Stats().Dropped, 3)
}

// A flush waits for a locked row for only one second, because decisions may use the same connection. No
// record is lost.
func TestFlushWaitsOneSecondForLockedRow(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	add := func() {
		history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, User: "anna",
			Audit: auditAll})
	}
	add()
	flush(t, w)
	lock, err := cluster.Connect(t, d.DSN).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	const locking = "SELECT FROM rate_limit_metrics_day FOR UPDATE"
	if _, err := lock.Exec(context.Background(), locking); err != nil {
		t.Fatal(err)
	}
	add()
	if err := w.Flush(context.Background()); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("a flush while a row is locked: got %v, want a lock timeout", err)
	}
	if err := lock.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	flush(t, w)
	checkNothingLost(t, d, w, 2)
}

// If tables go missing, a Writer does not create them again, because new tables would hinder a restore.
// Neither does a Writer that starts meanwhile. The Writer keeps records up to its bound, and writes them, and
// its retention, when the tables are restored.
func TestMissingTablesAreNotRecreated(t *testing.T) {
	d := newTestDB(t)
	retention := option.Retention{What: "audit", Keep: 7 * 24 * time.Hour}
	w := d.newWriter(history.Settings{Retention: []option.Retention{retention}})
	flush(t, w)
	d.Exec("ALTER TABLE rate_limit_audit RENAME TO away; ALTER TABLE rate_limit_retention RENAME TO kept")
	for i := 0; i < 10; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, User: "anna",
			Audit: auditAll})
	}
	for range 3 {
		if w.Flush(context.Background()) == nil {
			t.Error("a flush without tables: got no error, want one")
		}
	}
	// A proxy that starts meanwhile does not create the tables either.
	other := d.newWriter(history.Settings{Node: "another"})
	history.Add(other, &history.Record{Time: baseTime, Outcome: outcome.Admitted, User: "anna",
		Audit: auditAll})
	if err := other.Flush(context.Background()); err == nil ||
		!strings.Contains(err.Error(), schema.ErrRestoring.Error()) {
		t.Errorf("a flush of another proxy during a restore: got %v, want ErrRestoring", err)
	}
	check.Equal(t, "the table", d.Query("SELECT coalesce(to_regclass('rate_limit_audit')::text, 'gone')"),
		"gone")
	d.Exec("ALTER TABLE away RENAME TO rate_limit_audit; ALTER TABLE kept RENAME TO rate_limit_retention; " +
		"UPDATE rate_limit_retention SET keep = '1 day'")
	await.Within(t, time.Minute, "a flush", func() bool { return w.Flush(context.Background()) == nil })
	checkNothingLost(t, d, w, 10)
	// The Writer retries to write the retention every ten seconds.
	await.Within(t, time.Minute, "the retention", func() bool {
		flush(t, w)
		return d.Query("SELECT (keep = '7 days')::text FROM rate_limit_retention WHERE what = "+
			"'audit'") == "true"
	})
}
