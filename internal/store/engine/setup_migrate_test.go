package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// checkCounts fails the test unless a store counts in both tables.
func (s *testDB) checkCounts(store ratelimit.Store, prefix string) {
	s.t.Helper()
	for _, durable := range []bool{false, true} {
		l := &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour,
			Durable: durable}
		for _, want := range []bool{true, true, false} {
			if d := takeOne(s.t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); d.Allowed != want {
				s.t.Fatalf("durable %v: got %+v, want allowed %v", durable, d, want)
			}
		}
	}
}

// A store detects that the tables are ready even while another session has locked them exclusively.
func TestMigrationTakesNoLock(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	s.exec("BEGIN; LOCK TABLE rate_limit_ephemeral, rate_limit_durable IN ACCESS EXCLUSIVE MODE; SELECT " +
		"pg_advisory_xact_lock(1885827692)")
	store := s.openEngine(engine.Options{})
	store.Prepare()
	// The tables are right, so the call waits for the lock, not for a migration.
	done := make(chan error)
	go func() { _, _, err := tryOne(store, testTimeout, fakeHits("k")[0]); done <- err }()
	other := cluster.Connect(s.t, s.dsn)
	await.Within(t, testTimeout, "a statement to wait for the table", func() (waits bool) {
		err := other.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname
			= current_database() AND wait_event_type = 'Lock'
			AND query LIKE '%INSERT INTO rate_limit_ephemeral%' AND pid <> pg_backend_pid()`).Scan(&waits)
		return waits && err == nil
	})
	s.exec("COMMIT")
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.checkCounts(store, "q")
}

// A store makes tables of counts again that somebody has dropped. Without one of the other tables it changes
// nothing, since a restore may be under way.
func TestDroppedTablesOfCountsAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	store := s.openEngine(engine.Options{})
	s.checkCounts(store, "before")
	for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable, rate_limit_processes"} {
		s.exec("DROP TABLE " + table + " CASCADE")
		await.Within(t, testTimeout, "a decision without "+table, func() bool {
			for _, durable := range []bool{false, true} {
				limit := &ratelimit.Limit{Prefix: "after", Events: 100, Window: time.Hour, Durable: durable}
				hit := ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}
				if _, _, err := tryOne(store, testTimeout, hit); err != nil {
					return false
				}
			}
			return true
		})
	}
	s.exec("DROP TABLE rate_limit_ephemeral, rate_limit_bans CASCADE")
	if err := s.openEngine(engine.Options{}).Take(t.Context(), testTimeout, fakeHits("k"),
		make([]ratelimit.Decision, 1)); !errors.Is(err, schema.ErrRestoring) {
		t.Errorf("without a table of the policy, too: error %v, want that a restore is running", err)
	}
}

// While a long read of the tables (pg_dump, a report) blocks the migration, statements of other programs do
// not wait behind the migration. The migration succeeds after the read.
func TestMigrationBlocksNoOtherUser(t *testing.T) {
	s := newTestDB(t)
	s.exec(sqltest.LibraryTables + `CREATE INDEX idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral
			(prefix, expires_at);
		CREATE INDEX idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at)`)
	s.exec("BEGIN; " + schema.Lock)
	if brief := s.queryText("SELECT (setting::int BETWEEN 1 AND 5000)::text FROM pg_settings WHERE name = " +
		"'lock_timeout'"); brief != "true" {
		t.Errorf("the migration's lock_timeout is from 1 ms to 5 s: %s, want true", brief)
	}
	s.exec("ROLLBACK; BEGIN; SELECT count(*) FROM rate_limit_ephemeral")
	var failures atomic.Int64
	store := s.openEngineOn(s.openDB(""), engine.Options{OnError: func(err error) {
		if !strings.Contains(err.Error(), pg.LockNotAvailable) {
			t.Errorf("the migration failed with %v, want its lock timeout", err)
		}
		failures.Add(1)
	}})
	store.Prepare()
	node := cluster.Connect(s.t, s.dsn)
	for n := 0; failures.Load() < 2; n++ { // until two lock timeouts of the migration
		_, err := node.Exec(t.Context(),
			`INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
				VALUES ('node', $1, 1, now(), now())`, fmt.Sprint(n))
		if err != nil {
			t.Fatal(err)
		}
		store.Prepare()              // like the next request
		time.Sleep(time.Millisecond) // gives processor time to the migration
		if n == 20_000 {
			t.Fatalf("%d lock timeouts of the migration after %d statements, want 2", failures.Load(), n)
		}
	}
	s.exec("COMMIT")
	await.Within(t, testTimeout, "a decision", func() bool {
		_, _, err := tryOne(store, testTimeout, fakeHits("k")[0])
		return err == nil
	})
}

// With DisableMigration, a store creates no tables, and counts once another program has created them.
func TestDisabledMigrationCreatesNoTables(t *testing.T) {
	s := newTestDB(t)
	store := s.openEngine(engine.Options{DisableMigration: true})
	store.Prepare()
	for range 2 {
		err := store.Take(t.Context(), testTimeout, fakeHits("k"), make([]ratelimit.Decision, 1))
		if !strings.Contains(fmt.Sprint(err), `"rate_limit_ephemeral" does not exist`) {
			t.Errorf("without tables: error %v, want that rate_limit_ephemeral does not exist", err)
		}
	}
	s.exec(engine.TableSQL)
	s.checkCounts(store, "p")
}

// If a column of the tables has another type, each request has an error after one round trip, and none passes
// as if nothing were counted.
func TestColumnOfAnotherTypeIsAnError(t *testing.T) {
	t.Parallel()
	window := &ratelimit.Limit{Prefix: "window", Events: 5, Window: time.Hour}
	bucket := &ratelimit.Limit{Prefix: "bucket", Events: 5, Window: time.Hour, Algorithm: ratelimit.GCRA}
	open := drivers.All["pgwire"]
	for column, limit := range map[string]*ratelimit.Limit{"count int": window,
		"prev_count smallint": window, "remainder int": bucket, "tokens real": bucket} {
		s := newTestDB(t)
		s.exec(engine.TableSQL)
		name, to, _ := strings.Cut(column, " ")
		s.exec("ALTER TABLE rate_limit_ephemeral ALTER COLUMN " + name + " TYPE " + to)
		hits := []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1},
			{Limit: &ratelimit.Limit{Prefix: "other", Events: 5, Window: time.Hour}, Key: "k", Cost: 1}}
		store := newEngine(t, open(t, s.dsn), engine.Options{})
		for n := range 2 {
			err := store.Take(t.Context(), testTimeout, hits[:n+1], make([]ratelimit.Decision, n+1))
			if !errors.Is(err, pg.ErrColumns) {
				t.Errorf("column %s, %d limits: error %v, want ErrColumns", column, n+1, err)
			}
		}
		if n := store.Stats()[engine.Statements]; n > 20 {
			t.Errorf("column %s: %v statements for two requests, want few", column, n)
		}
	}
}
