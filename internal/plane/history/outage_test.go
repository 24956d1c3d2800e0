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

// end stops the load, and returns the number of its records.
func (l *load) end() int64 {
	l.stop()
	l.ended.Wait()
	return l.added
}

// exact reports an error unless rows and dropped decisions add up to the records.
func exact(t testing.TB, s *site, w *history.Writer, added int64) {
	t.Helper()
	stats := w.Stats()
	if stats.Recorded != added || stats.Pending != 0 || stats.Written+stats.Dropped != added {
		t.Errorf("%d records were added, and the counts are %+v", added, stats)
	}
	same(t, "rows, minutes and days of users", s.text(`SELECT
		(SELECT sum(count) FROM rate_limit_audit)::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute')::bigint,
		(SELECT sum(requests) FROM rate_limit_metrics_day WHERE user_id > '')::bigint`),
		fmt.Sprint(stats.Written, added, added))
	same(t, "what rate_limit_writers says", s.text("SELECT written, dropped FROM rate_limit_writers"),
		fmt.Sprint(stats.Written, stats.Dropped))
}

// Each decision during an outage is either in the tables or counted as dropped.
func TestAnOutageDropsTheOldestAndCountsThem(t *testing.T) {
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
			s := siteOn(t, c.DSN("postgres"))
			const most = 400
			w := s.writer(history.Settings{MaxPending: most})
			w.Prepare()
			l := startLoad(w)
			await.Within(t, time.Minute, "rows before the outage",
				func() bool { return w.Stats().Written > 1000 })
			before := w.Stats().Dropped
			if err := outage.begin(c); err != nil {
				t.Fatal(err)
			}
			await.Within(t, time.Minute, "drops", func() bool { return w.Stats().Dropped > before+2000 })
			if stats := w.Stats(); stats.Pending > most*100 {
				t.Errorf("%d decisions wait", stats.Pending)
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
			s.pool.Reset()
			exact(t, s, w, added)
			if all := s.reports(); len(all) == 0 || len(all) > 3 {
				t.Errorf("reports within a few minutes: %q", all)
			}
		})
	}
}

// forgetfulDB executes all calls, and loses some of the answers.
type forgetfulDB struct {
	pgdb.DB
	calls int
}

var errLost = errors.New("the connection is lost")

func (f *forgetfulDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	err := f.DB.Run(ctx, statements)
	if !strings.Contains(statements[0].SQL, "begin_batch") {
		return err
	}
	f.calls++
	if err != nil || f.calls%3 == 0 {
		return err
	}
	for _, s := range statements {
		s.Err, s.Code = errLost, ""
	}
	return errLost
}

// A parcel with an unknown result is sent again under its number, and written once. Records that arrive
// meanwhile go into another parcel.
func TestABatchWithAnUnknownOutcomeIsWrittenOnce(t *testing.T) {
	s := newSite(t)
	w := s.writerOn(&forgetfulDB{DB: s.db()}, history.Settings{})
	added := int64(0)
	for round := 0; round < 20; round++ {
		for i := 0; i < 5; i++ {
			added++
			history.Add(w, &history.Record{Time: someTime, Outcome: history.Limited, Key: "k", User: "anna",
				Audit: auditAll})
		}
		_ = w.Flush(context.Background())
	}
	await.Within(t, time.Minute, "a flush", func() bool { return w.Flush(context.Background()) == nil })
	exact(t, s, w, added)
	if w.Stats().Failures < 10 {
		t.Errorf("only %d attempts failed", w.Stats().Failures)
	}
}

// A row that the server refuses is dropped once it has failed alone, and all others are written.
func TestARowThatTheServerRefusesStopsNoOther(t *testing.T) {
	s := newSite(t)
	w := s.writer(history.Settings{})
	flush(t, w)
	s.exec("ALTER TABLE rate_limit_audit ADD CONSTRAINT no_evil CHECK (path IS DISTINCT FROM '/evil')")
	s.exec("ALTER TABLE rate_limit_metrics ADD CONSTRAINT no_evil CHECK (user_id <> 'evil')")
	for i := 0; i < 500; i++ {
		r := history.Record{Time: someTime, Outcome: history.Allowed, User: fmt.Sprint("u", i%9),
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
	same(t, "sums", s.text(`SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT sum(requests)
		FROM rate_limit_metrics WHERE granularity = 'hour')::bigint`), "497 495")
	stats := w.Stats()
	same(t, "counts", fmt.Sprint(stats.Written, stats.Dropped, stats.DroppedMetrics, stats.Pending),
		"497 3 5 0")
	same(t, "what rate_limit_writers says", s.text("SELECT written, dropped FROM rate_limit_writers"),
		"497 3")
	if all := s.reports(); len(all) != 1 || !strings.Contains(all[0], "dropped 1 decisions") {
		t.Errorf("reports in one minute: %q", all)
	}
}

// A flush waits for a locked row for one second, so that decisions on the same connection go on. No record is
// lost.
func TestALockedRowIsWaitedForOneSecond(t *testing.T) {
	s := newSite(t)
	w := s.writer(history.Settings{})
	add := func() {
		history.Add(w, &history.Record{Time: someTime, Outcome: history.Allowed, User: "anna",
			Audit: auditAll})
	}
	add()
	flush(t, w)
	lock, err := s.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	const locking = "SELECT FROM rate_limit_metrics_day FOR UPDATE"
	if _, err := lock.Exec(context.Background(), locking); err != nil {
		t.Fatal(err)
	}
	add()
	if err := w.Flush(context.Background()); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("a flush while a row is locked: %v", err)
	}
	if err := lock.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	flush(t, w)
	exact(t, s, w, 2)
}

// A Writer does not create tables that vanish, because they would hinder a restore. It keeps records up to
// the bound, and writes the retention again.
func TestTablesThatAreGoneAreNotMadeAgain(t *testing.T) {
	s := newSite(t)
	kept := settings.Retention{What: "audit", Keep: 7 * 24 * time.Hour}
	w := s.writer(history.Settings{Retention: []settings.Retention{kept}})
	flush(t, w)
	s.exec("DROP TABLE rate_limit_audit, rate_limit_metrics, rate_limit_writers, " +
		"rate_limit_retention CASCADE")
	for i := 0; i < 10; i++ {
		history.Add(w, &history.Record{Time: someTime, Outcome: history.Allowed, User: "anna",
			Audit: auditAll})
	}
	for range 3 {
		if w.Flush(context.Background()) == nil {
			t.Error("a flush without tables does not fail")
		}
	}
	same(t, "the table", s.text("SELECT coalesce(to_regclass('rate_limit_audit')::text, 'gone')"), "gone")
	other := s.writer(history.Settings{Node: "another"})
	history.Add(other, &history.Record{Time: someTime, Outcome: history.Allowed, User: "anna",
		Audit: auditAll})
	if err := other.Flush(context.Background()); err == nil ||
		!strings.Contains(err.Error(), schema.ErrRestoring.Error()) {
		t.Errorf("another proxy starts while tables are there in part: %v", err)
	}
	same(t, "the table", s.text("SELECT coalesce(to_regclass('rate_limit_audit')::text, 'gone')"), "gone")
	s.exec(schema.History)
	await.Within(t, time.Minute, "a flush", func() bool { return w.Flush(context.Background()) == nil })
	exact(t, s, w, 10)
	// it is written every ten seconds until it can be
	await.Within(t, time.Minute, "the retention", func() bool {
		flush(t, w)
		return s.text("SELECT (keep = '7 days')::text FROM rate_limit_retention WHERE what = "+
			"'audit'") == "true"
	})
}
