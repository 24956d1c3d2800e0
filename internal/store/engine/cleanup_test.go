package engine_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// insertExpiring inserts rows of a prefix: the rows "dead1", "dead2" …, which expired some hours ago, and as
// many "live" rows that have not expired.
func (s *testDB) insertExpiring(table, prefix string, rows, hours int) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`INSERT INTO %s (prefix, key, count, window_start, expires_at)
		SELECT '%s', kind || n, 1, now() - interval '2 days', now() + CASE kind WHEN 'dead' THEN -%d ELSE 1
		END * interval '1 hour'
		FROM generate_series(1, %d) n, (VALUES ('dead'), ('live')) AS k(kind)`, table, prefix, hours, rows))
}

// countRows returns the numbers of dead and live rows of the prefix p in a table, and of dead rows of the
// prefixes old and node.
func (s *testDB) countRows(table string) string {
	s.t.Helper()
	return s.queryText("SELECT format('p: %s dead, %s live; old: %s dead; node: %s dead', " +
		"count(*) FILTER (WHERE prefix = 'p' AND key LIKE 'dead%'), " +
		"count(*) FILTER (WHERE prefix = 'p' AND key LIKE 'live%'), " +
		"count(*) FILTER (WHERE prefix = 'old' AND key LIKE 'dead%'), " +
		"count(*) FILTER (WHERE prefix = 'node' AND key LIKE 'dead%')) FROM " + table)
}

// A cleanup deletes the expired rows of both tables, and no other rows. Of prefixes that the process does not
// count, it keeps rows for a day: a program of the npm library may count them, by a clock that is late.
func TestCleanupDeletesOnlyExpiredRows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		probability float64
		want        string
	}{
		{probability: 1, want: "p: 0 dead, 2500 live; old: 0 dead; node: 10 dead"},
		{probability: -1, want: "p: 2500 dead, 2500 live; old: 10 dead; node: 10 dead"},
	} {
		s := newTestDB(t)
		s.exec(engine.TableSQL)
		tables := []string{"rate_limit_ephemeral", "rate_limit_durable"}
		for _, table := range tables {
			s.insertExpiring(table, "p", 2500, 1)
			s.insertExpiring(table, "old", 10, 25)
			s.insertExpiring(table, "node", 10, 23)
		}
		store := s.openEngine(engine.Options{CleanupProbability: test.probability})
		for range 50 {
			takeAll(t, store, hitOn("p", 100_000, false), hitOn("p", 100_000, true))
		}
		for _, table := range tables {
			await.Within(t, testTimeout, table+" to have "+test.want, func() bool {
				takeAll(t, store, hitOn("p", 100_000, false), hitOn("p", 100_000, true))
				return s.countRows(table) == test.want
			})
		}
		s.requireNoReports()
	}
}

// A cleanup deletes at most 1,000 rows, and skips rows that another session has locked.
func TestCleanupIsBounded(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	s.insertExpiring("rate_limit_ephemeral", "p", 1500, 1)
	db := s.openDB("")
	defer db.Close()
	now := time.Now().UnixMicro()
	check := func(what, prefix string, now, want int64) {
		t.Helper()
		statement := &pgdb.Statement{SQL: engine.CleanupSQL(prefix == "s"),
			Args: []any{[]int64{now, 0}, prefix, time.Minute.Microseconds()}}
		err := db.Run(t.Context(), testTimeout, []*pgdb.Statement{statement})
		if err := errors.Join(err, statement.Err); err != nil {
			t.Fatal(err)
		}
		if deleted := int64(binary.BigEndian.Uint64(statement.Result[4:])); deleted != want {
			t.Errorf("%s: %d rows deleted, want %d", what, deleted, want)
		}
	}
	check("1,500 expired rows", "p", now, 1000)
	check("500 expired rows", "p", now, 500)
	check("no expired rows", "p", now, 0)
	// A row is deleted a minute after its expires_at.
	s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, expires_at)
		VALUES ('q', 'k', timestamptz 'epoch' + $1 * interval '1 microsecond')`, now)
	check("a minute less a microsecond after expires_at", "q", now+60*conformance.Second-1, 0)
	check("a minute after expires_at", "q", now+60*conformance.Second, 1)
	// A row with slots of a live process stays.
	s.exec("DELETE FROM rate_limit_ephemeral")
	s.exec(`INSERT INTO rate_limit_processes (process, seen) VALUES (7, now())`)
	s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, slots, expires_at)
		VALUES ('s', 'held', ARRAY[7::bigint << 32], now() - interval '1 h'),
			('s', 'ended', ARRAY[8::bigint << 32], now() - interval '1 h')`)
	check("a row with slots of a live process, and one without", "s", now, 1)
	s.exec("DELETE FROM rate_limit_ephemeral")
	s.insertExpiring("rate_limit_ephemeral", "p", 3, 1)
	s.exec("BEGIN; SELECT FROM rate_limit_ephemeral WHERE key = 'dead2' FOR UPDATE")
	check("three rows, one locked", "p", now, 2)
	s.exec("COMMIT")
	check("the row that was locked", "p", now, 1)
}
