package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// works checks that a store counts in both tables.
func (s *site) works(store ratelimit.Store, prefix string) {
	s.t.Helper()
	for _, durable := range []bool{false, true} {
		l := &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour,
			Durable: durable}
		for _, want := range []bool{true, true, false} {
			if d := takeOne(s.t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); d.Allowed != want {
				s.t.Fatalf("durable %v: %+v, want %v", durable, d, want)
			}
		}
	}
}

// layout describes the tables of counts as they are.
const layout = `SELECT string_agg(line, E'\n' ORDER BY line) FROM
	unnest('{rate_limit_ephemeral,rate_limit_durable}'::regclass[]) AS r(id), LATERAL (
	SELECT format('%s %s %s', relname, relpersistence, reloptions) AS line FROM pg_class WHERE oid = id
	UNION ALL SELECT format('%s %s %s %s', id, attname, format_type(atttypid, atttypmod), attnotnull)
		FROM pg_attribute WHERE attrelid = id AND attnum > 0 AND NOT attisdropped
	UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = id) AS l`

// npmTables are the tables as the npm library pg-ratelimit has them.
const npmTables = `
CREATE UNLOGGED TABLE rate_limit_ephemeral (prefix text NOT NULL, key text NOT NULL, count bigint,
prev_count bigint, window_start timestamptz,
	tokens double precision, last_refill timestamptz, expires_at timestamptz NOT NULL, PRIMARY KEY (prefix,
	key));
CREATE TABLE rate_limit_durable (LIKE rate_limit_ephemeral INCLUDING ALL);
CREATE INDEX idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);`

// TestMigration brings databases of all kinds to the same tables.
func TestMigration(t *testing.T) {
	t.Parallel()
	model := newSite(t)
	model.exec(engine.TableSQL)
	want := model.text(layout)
	for name, before := range map[string]string{
		"empty":            "",
		"npm":              npmTables,
		"right already":    engine.TableSQL,
		"one table only":   npmTables + "DROP TABLE rate_limit_durable",
		"no index":         engine.TableSQL + "DROP INDEX idx_rate_limit_durable_cleanup",
		"a column missing": engine.TableSQL + "ALTER TABLE rate_limit_ephemeral DROP COLUMN remainder",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.exec(before)
			s.works(s.store(engine.Options{}), "p")
			if got := s.text(layout); got != want {
				t.Errorf("the tables are\n%s\nwant\n%s", got, want)
			}
			s.works(s.store(engine.Options{}), "q")
			s.nothingReported()
		})
	}
}

// TestMigrationTakesNoLock: a store finds that the tables are right while
// somebody else holds the strongest of locks on them.
func TestMigrationTakesNoLock(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL)
	s.exec("BEGIN; LOCK TABLE rate_limit_ephemeral, rate_limit_durable IN ACCESS EXCLUSIVE MODE; SELECT " +
		"pg_advisory_xact_lock(1885827692)")
	store := s.store(engine.Options{})
	store.Prepare()
	// With tables that were found right, the call waits for the lock, not for a migration.
	done := make(chan error)
	go func() { _, _, err := tryOne(store, longTime, fakeHits("k")[0]); done <- err }()
	other := cluster.Connect(s.t, s.dsn)
	await.Within(t, longTime, "a statement to wait for the table", func() (waits bool) {
		err := other.QueryRow(context.Background(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname
			= current_database() AND wait_event_type = 'Lock'
			AND query LIKE '%INSERT INTO rate_limit_ephemeral%' AND pid <> pg_backend_pid()`).Scan(&waits)
		return waits && err == nil
	})
	s.exec("COMMIT")
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.works(store, "q")
}

// TestMigrationBlocksNoOtherUser: a long read of the tables (pg_dump, a report) keeps the
// migration from altering them. The statements of other programs do not wait behind the
// migration until the read ends, and it succeeds then.
func TestMigrationBlocksNoOtherUser(t *testing.T) {
	s := newSite(t)
	s.exec(npmTables)
	s.exec("BEGIN; " + schema.Lock)
	if brief := s.text("SELECT (setting::int BETWEEN 1 AND 5000)::text FROM pg_settings WHERE name = " +
		"'lock_timeout'"); brief != "true" {
		t.Error("the migration waits for a lock for more than five seconds")
	}
	s.exec("ROLLBACK; BEGIN; SELECT count(*) FROM rate_limit_ephemeral")
	var failures atomic.Int64
	store := s.storeOn(s.db(""), engine.Options{OnError: func(err error) {
		if !strings.Contains(err.Error(), pg.LockNotAvailable) {
			t.Errorf("the migration has not given way by itself: %v", err)
		}
		failures.Add(1)
	}})
	store.Prepare()
	node := cluster.Connect(s.t, s.dsn)
	for n := 0; failures.Load() < 2; n++ { // the migration has given way twice
		_, err := node.Exec(context.Background(),
			`INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
				VALUES ('node', $1, 1, now(), now())`, fmt.Sprint(n))
		if err != nil {
			t.Fatal(err)
		}
		store.Prepare()              // as the next request would
		time.Sleep(time.Millisecond) // leaves the processor to the migration
		if n == 20_000 {
			t.Fatal("the migration does not give way")
		}
	}
	s.exec("COMMIT")
	await.Within(t, longTime, "a decision", func() bool {
		_, _, err := tryOne(store, longTime, fakeHits("k")[0])
		return err == nil
	})
}

// TestMigrationOff leaves the tables to others.
func TestMigrationOff(t *testing.T) {
	s := newSite(t)
	store := s.store(engine.Options{DisableMigration: true})
	store.Prepare()
	for range 2 {
		err := store.Take(context.Background(), longTime, fakeHits("k"), make([]ratelimit.Decision, 1))
		if err == nil || !strings.Contains(err.Error(), `"rate_limit_ephemeral" does not exist`) {
			t.Errorf("without tables: %v", err)
		}
	}
	s.exec(engine.TableSQL)
	s.works(store, "p")
}
