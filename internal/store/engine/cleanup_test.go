package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// expire makes rows of a prefix that have expired, and as many that have not.
func (s *site) expire(table, prefix string, rows int) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`INSERT INTO %s (prefix, key, count, window_start, expires_at)
		SELECT '%s', kind || n, 1, now() - interval '2 hours', now() + CASE kind WHEN 'dead' THEN -1 ELSE 1
		END * interval '1 hour'
		FROM generate_series(1, %d) n, (VALUES ('dead'), ('live')) AS k(kind)`, table, prefix, rows))
}

func (s *site) left(table, prefix, kind string) string {
	s.t.Helper()
	return s.text("SELECT count(*)::text FROM "+table+" WHERE prefix = $1 AND key LIKE $2", prefix, kind+"%")
}

// TestCleanup: expired rows go from both tables, also those of prefixes that are not in
// use, and rows that live stay.
func TestCleanup(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		probability float64
		want        string
		others      string
	}{{1, "0", "0"}, {-1, "2500", "10"}} {
		s := newSite(t)
		s.exec(engine.TableSQL)
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
			s.expire(table, "p", 2500)
			s.expire(table, "other", 10)
		}
		store := s.store(engine.Options{CleanupProbability: test.probability})
		for i := range 50 {
			for _, durable := range []bool{false, true} {
				h := hitOn("p", 10, durable)
				h.Key = fmt.Sprint(i)
				takeOne(t, store, h)
			}
		}
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
			if test.probability > 0 {
				await.Within(t, longTime, "expired rows to go", func() bool {
					passes(t, store, hitOn("p", 100_000, false), hitOn("p", 100_000, true))
					return s.left(table, "p", "dead") == "0" && s.left(table, "other", "dead") == "0"
				})
			}
			if dead, live, others := s.left(table, "p", "dead"), s.left(table, "p", "live"),
				s.left(table, "other", "dead"); dead != test.want || live != "2500" || others != test.others {
				t.Errorf("probability %v, %s: %s dead, %s live and %s others are left, want %s, 2500 and %s",
					test.probability, table, dead, live, others, test.want, test.others)
			}
		}
		s.nothingReported()
	}
}

// cleanUp runs the statement that deletes a prefix's expired rows, once.
func cleanUp(db pgdb.DB, prefix string, now int64) (deleted int64, err error) {
	statement := &pgdb.Statement{SQL: engine.CleanupSQL(prefix == "s"), Args: []any{[]int64{now, 0}, prefix}}
	if err := db.Run(context.Background(), []*pgdb.Statement{statement}); err != nil || statement.Err != nil {
		return 0, errors.Join(err, statement.Err)
	}
	return int64(binary.BigEndian.Uint64(statement.Result[4:])), nil
}

// TestCleanupIsBounded: a statement deletes at most 1,000 rows, and skips rows that another
// session has locked.
func TestCleanupIsBounded(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL)
	s.expire("rate_limit_ephemeral", "p", 1500)
	db := s.db("")
	defer db.Close()
	now := time.Now().UnixMicro()
	for i, want := range []int64{1000, 500, 0} {
		if gone, err := cleanUp(db, "p", now); err != nil || gone != want {
			t.Errorf("cleanup %d: %d rows, %v; want %d", i, gone, err, want)
		}
	}
	// A row is as good as none from its expires_at on, and goes a minute later.
	s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, expires_at)
		VALUES ('q', 'k', timestamptz 'epoch' + $1 * interval '1 microsecond')`, now)
	for i, want := range []int64{0, 1} {
		if gone, err := cleanUp(db, "q", now+60*conformance.Second-1+int64(i)); err != nil || gone != want {
			t.Errorf("%d microseconds early: %d rows, %v; want %d", 1-i, gone, err, want)
		}
	}
	// A row with the slots of a process that runs stays.
	s.exec("DELETE FROM rate_limit_ephemeral")
	s.exec(`INSERT INTO rate_limit_processes (process, seen) VALUES (7, now())`)
	s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, slots, expires_at)
		VALUES ('s', 'held', ARRAY[7::bigint << 32], now() - interval '1 h'),
			('s', 'ended', ARRAY[8::bigint << 32], now() - interval '1 h')`)
	if gone, err := cleanUp(db, "s", now); err != nil || gone != 1 {
		t.Errorf("beside slots: %d rows, %v; want 1", gone, err)
	}
	s.exec("DELETE FROM rate_limit_ephemeral")
	s.expire("rate_limit_ephemeral", "p", 3)
	tx, err := cluster.Connect(s.t, s.dsn).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(),
		"SELECT FROM rate_limit_ephemeral WHERE key = 'dead2' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if gone, err := cleanUp(db, "p", now); err != nil || gone != 2 {
		t.Errorf("beside a lock: %d rows, %v; want 2", gone, err)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if gone, err := cleanUp(db, "p", now); err != nil || gone != 1 {
		t.Errorf("without the lock: %d rows, %v; want 1", gone, err)
	}
}

// TestCleanupOfTheLibrary: the npm library deletes expired rows in an order of its own, so its
// statement and a batch can wait for each other. Then Postgres ends one of the two. The batch
// runs again, and no caller gets an error.
func TestCleanupOfTheLibrary(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec("ALTER DATABASE " + s.text("SELECT current_database()") + " SET deadlock_timeout = '10ms'")
	store := s.store(engine.Options{CleanupProbability: -1})
	limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000,
		Window: time.Millisecond}
	until := time.Now().Add(time.Duration(conformance.Long()) * 2 * time.Second)
	var group sync.WaitGroup
	deleted := int64(0)
	library := cluster.Connect(s.t, s.dsn)
	group.Add(1)
	go func() {
		defer group.Done()
		for time.Now().Before(until) {
			// It does not look at errors either.
			tag, _ := library.Exec(context.Background(),
				"DELETE FROM rate_limit_ephemeral WHERE prefix = 'p' AND expires_at < clock_timestamp()")
			deleted += tag.RowsAffected()
		}
	}()
	for caller := range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(until) {
				var hits []ratelimit.Hit
				for i := range 50 {
					hits = append(hits,
						ratelimit.Hit{Limit: limit, Key: fmt.Sprint((i*7 + caller) % 60), Cost: 1})
				}
				// Each has a queue, and so a connection, of its own.
				if err := store.Take(context.Background(), longTime+time.Duration(caller)*time.Second, hits,
					make([]ratelimit.Decision, len(hits))); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	if deleted == 0 {
		t.Error("the library deleted nothing")
	}
}
