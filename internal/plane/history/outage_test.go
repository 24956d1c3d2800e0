package history_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// load adds records until it is stopped.
type load struct {
	stop  context.CancelFunc
	ended sync.WaitGroup
	added int64
}

func startLoad(w *history.Writer) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	l.ended.Go(func() {
		for ctx.Err() == nil {
			for i := 0; i < 10; i++ {
				l.added++
				history.Add(w, &history.Record{
					Time: time.Now(), Outcome: history.OutcomeKind(l.added % 2),
					Key: fmt.Sprint("k", l.added%7), User: fmt.Sprint("u", l.added%11), Cost: 1,
					Audit: auditAll,
				})
			}
			time.Sleep(5 * time.Millisecond) // the rate of the load
		}
	})
	return l
}

// end stops the load and returns the number of added records.
func (l *load) end() int64 {
	l.stop()
	l.ended.Wait()
	return l.added
}

// checkNothingLost checks that written and dropped decisions add up to the added records.
func checkNothingLost(t testing.TB, d *testDB, w *history.Writer, added int64) {
	t.Helper()
	stats := w.Stats()
	if stats.Recorded != added || stats.Pending != 0 || stats.Written+stats.Dropped != added {
		t.Errorf("Stats: got %+v, want %d recorded, and as many written or dropped", stats, added)
	}
	checkEqual(t, "rows, minutes and days of users", d.query(`SELECT
		(SELECT sum(count) FROM rate_limit_audit)::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute')::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics_day WHERE user_id > '')::bigint`),
		fmt.Sprint(stats.Written, added, added))
	checkEqual(t, "rate_limit_writers", d.query("SELECT written, dropped FROM rate_limit_writers"),
		fmt.Sprint(stats.Written, stats.Dropped))
}

// Each decision during an outage is either in the tables or counted as dropped.
func TestOutageDropsOldestRows(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it fills the memory of a proxy")
	}
	restart := func(c *cluster.Cluster) error { return c.Restart(context.Background()) }
	for name, outage := range map[string]struct {
		begin, end func(c *cluster.Cluster) error
	}{
		"stopped": {(*cluster.Cluster).Stop, restart},
		"killed":  {(*cluster.Cluster).Kill, restart},
		"paused":  {(*cluster.Cluster).Pause, (*cluster.Cluster).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.Private(t, cluster.Options{})
			d := openTestDB(t, c.DSN("postgres"))
			const maxPending = 400
			w := d.newWriter(history.Settings{MaxPending: maxPending})
			w.Prepare()
			l := startLoad(w)
			await.Within(t, time.Minute, "rows before the outage",
				func() bool { return w.Stats().Written > 1000 })
			before := w.Stats().Dropped
			if err := outage.begin(c); err != nil {
				t.Fatal(err)
			}
			await.Within(t, time.Minute, "drops", func() bool { return w.Stats().Dropped > before+2000 })
			if stats := w.Stats(); stats.Pending > maxPending*100 {
				t.Errorf("Pending: got %d, want at most %d", stats.Pending, maxPending*100)
			}
			if err := outage.end(c); err != nil {
				t.Fatal(err)
			}
			after := w.Stats().Written
			await.Within(t, time.Minute, "rows after the outage",
				func() bool { return w.Stats().Written > after+1000 })
			added := l.end()
			await.Within(t, time.Minute, "a flush",
				func() bool { return w.Flush(context.Background()) == nil })
			d.pool.Reset()
			checkNothingLost(t, d, w, added)
			if reports := d.reportedErrors(); len(reports) == 0 || len(reports) > 3 {
				t.Errorf("reported errors: got %q, want 1 to 3", reports)
			}
		})
	}
}

// lossyDB executes all calls and loses some of the results.
type lossyDB struct {
	pgdb.DB
	calls int
}

var errLost = errors.New("the connection is lost")

func (l *lossyDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	err := l.DB.Run(ctx, statements)
	if !strings.Contains(statements[0].SQL, "begin_batch") {
		return err
	}
	l.calls++
	if err != nil || l.calls%3 == 0 {
		return err
	}
	for _, s := range statements {
		s.Err, s.Code = errLost, ""
	}
	return errLost
}

// A parcel with an unknown result is sent again with the same number, and written once. Records that are
// added meanwhile go into another parcel.
func TestParcelWithUnknownResultIsWrittenOnce(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriterOn(&lossyDB{DB: d.openDB()}, history.Settings{})
	added := int64(0)
	for round := 0; round < 20; round++ {
		for i := 0; i < 5; i++ {
			added++
			history.Add(w, &history.Record{Time: baseTime, Outcome: history.Limited, Key: "k", User: "anna",
				Audit: auditAll})
		}
		_ = w.Flush(context.Background())
	}
	await.Within(t, time.Minute, "a flush", func() bool { return w.Flush(context.Background()) == nil })
	checkNothingLost(t, d, w, added)
	if w.Stats().Failures < 10 {
		t.Errorf("Failures: got %d, want at least 10", w.Stats().Failures)
	}
}

// A row that the server rejects is dropped after it has failed alone. All others are written.
func TestRejectedRowStopsNoOther(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	flush(t, w)
	d.exec("ALTER TABLE rate_limit_audit ADD CONSTRAINT no_evil CHECK (path IS DISTINCT FROM '/evil')")
	d.exec("ALTER TABLE rate_limit_metrics ADD CONSTRAINT no_evil CHECK (user_id <> 'evil')")
	for i := 0; i < 500; i++ {
		r := history.Record{Time: baseTime, Outcome: history.Allowed, User: fmt.Sprint("u", i%9),
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
	checkEqual(t, "sums", d.query(`SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT sum(requests)
		FROM rate_limit_metrics WHERE granularity = 'hour')::bigint`), "497 495")
	stats := w.Stats()
	checkEqual(t, "counts", fmt.Sprint(stats.Written, stats.Dropped, stats.DroppedMetrics, stats.Pending),
		"497 3 5 0")
	checkEqual(t, "rate_limit_writers", d.query("SELECT written, dropped FROM rate_limit_writers"),
		"497 3")
	reports := d.reportedErrors()
	if len(reports) != 1 || !strings.Contains(reports[0], "dropped 1 decisions") {
		t.Errorf("reported errors: got %q, want one about 1 dropped decision", reports)
	}
}

// A flush waits for a locked row for only one second, because decisions may share the connection. No record
// is lost.
func TestFlushWaitsOneSecondForLockedRow(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	add := func() {
		history.Add(w, &history.Record{Time: baseTime, Outcome: history.Allowed, User: "anna",
			Audit: auditAll})
	}
	add()
	flush(t, w)
	lock, err := d.pool.Begin(context.Background())
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

// A Writer does not create missing tables again, because they would hinder a restore. It keeps records up to
// the bound, and writes the retention again.
func TestMissingTablesAreNotRecreated(t *testing.T) {
	d := newTestDB(t)
	retention := settings.Retention{What: "audit", Keep: 7 * 24 * time.Hour}
	w := d.newWriter(history.Settings{Retention: []settings.Retention{retention}})
	flush(t, w)
	d.exec("DROP TABLE rate_limit_audit, rate_limit_metrics, rate_limit_writers, " +
		"rate_limit_retention CASCADE")
	for i := 0; i < 10; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: history.Allowed, User: "anna",
			Audit: auditAll})
	}
	for range 3 {
		if w.Flush(context.Background()) == nil {
			t.Error("a flush without tables: got no error, want one")
		}
	}
	checkEqual(t, "the table", d.query("SELECT coalesce(to_regclass('rate_limit_audit')::text, 'gone')"),
		"gone")
	other := d.newWriter(history.Settings{Node: "another"})
	history.Add(other, &history.Record{Time: baseTime, Outcome: history.Allowed, User: "anna",
		Audit: auditAll})
	if err := other.Flush(context.Background()); err == nil ||
		!strings.Contains(err.Error(), schema.ErrRestoring.Error()) {
		t.Errorf("a flush of another proxy during a restore: got %v, want ErrRestoring", err)
	}
	checkEqual(t, "the table", d.query("SELECT coalesce(to_regclass('rate_limit_audit')::text, 'gone')"),
		"gone")
	d.exec(schema.History)
	await.Within(t, time.Minute, "a flush", func() bool { return w.Flush(context.Background()) == nil })
	checkNothingLost(t, d, w, 10)
	// the Writer retries every ten seconds
	await.Within(t, time.Minute, "the retention", func() bool {
		flush(t, w)
		return d.query("SELECT (keep = '7 days')::text FROM rate_limit_retention WHERE what = "+
			"'audit'") == "true"
	})
}
