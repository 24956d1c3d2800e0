package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// testTransactions checks that joined statements run in one transaction, and every other statement in its
// own.
func testTransactions(t *testing.T, d *db) {
	const sql = "SELECT pg_current_xact_id()::text, coalesce(current_setting('of.transaction', true), '')"
	for range 3 { // first not prepared, then prepared
		before, a, b, c, single, after := statement(sql), statement(sql),
			statement("SELECT set_config('of.transaction', 'set', true)"), statement(sql), statement(sql),
			statement(sql)
		after.Joined = true // the last statement joins none
		statements := append([]*pgdb.Statement{before}, transaction(a, b, c)...)
		statements = append(statements, single, after)
		d.run(statements...)
		ids := map[string]string{}
		for _, s := range []*pgdb.Statement{before, a, c, single, after} {
			got := cells(t, s)
			ids[got[0]] += fmt.Sprint(got[1], ".")
		}
		if x := ids[cells(t, a)[0]]; len(ids) != 4 || x != ".set." {
			t.Errorf("%d transactions, the setting in the second is %q; want 4 and .set.", len(ids), x)
		}
	}
}

// testFailedTransactions checks that if a statement fails, its transaction is rolled back, and the other
// transactions of the call succeed. Each of three joined statements fails in turn, and then a single
// statement.
func testFailedTransactions(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	for use := range 24 { // of each kind, first not prepared, then prepared
		size, failing, round := 3, use/2%4, use/8
		if failing == size {
			size, failing = 1, 0
		}
		var joined []*pgdb.Statement
		for i := range size {
			s := statement("INSERT INTO t SELECT n FROM generate_series(1, $1::bigint) n RETURNING n",
				int64(2))
			if i == failing {
				s = statement(fmt.Sprintf("SELECT %d / $1::bigint", round/2), int64(0))
			}
			s.Unnamed = use%2 == 1
			joined = append(joined, s)
		}
		const insert = "INSERT INTO t VALUES (7) RETURNING n"
		before, after := statement(insert), statement(insert)
		good := transaction(statement(insert), statement(insert))
		all := append([]*pgdb.Statement{before}, transaction(joined...)...)
		if err := d.try(append(append(all, after), good...)...); err != nil {
			t.Fatal(err)
		}
		for i, s := range joined {
			checkRolledBack(t, s, i-failing)
		}
		for _, s := range append(good, before, after) {
			if s.Err != nil || s.Code != "" || !equal(cells(t, s), bigintBytes(7)) {
				t.Errorf("another transaction has %v, code %q, rows %q; want 7", s.Err, s.Code, s.Result)
			}
		}
		d.requireRows(4*use+4, fmt.Sprint("use ", use))
	}
}

// checkRolledBack checks s, a statement of a transaction in which a division by zero fails. place is 0 for
// the division itself, negative for a statement before it, and positive after it.
func checkRolledBack(t *testing.T, s *pgdb.Statement, place int) {
	t.Helper()
	if place == 0 {
		if s.Code != "22012" || s.Err == nil || !strings.Contains(s.Err.Error(), "division by zero") {
			t.Errorf("the division fails with %v, code %q, want 22012", s.Err, s.Code)
		}
		return
	}
	var want []string // the rows before the failure
	if place < 0 {
		want = []string{bigintBytes(1), bigintBytes(2)}
	}
	if got := cells(t, s); !errors.Is(s.Err, pgdb.ErrRolledBack) || s.Code != "" || !equal(got, want...) {
		t.Errorf("statement at %+d: error %v, code %q, rows %q, want ErrRolledBack and %q", place, s.Err,
			s.Code, got, want)
	}
}

// outcomes returns "rolled back", an SQLSTATE, "error" or "ok" for each statement.
func outcomes(statements ...*pgdb.Statement) string {
	var texts []string
	for _, s := range statements {
		text := cmp.Or(s.Code, "error")
		if errors.Is(s.Err, pgdb.ErrRolledBack) {
			text = "rolled back"
		} else if s.Err == nil {
			text = "ok"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// testFailedCommit checks that if a transaction fails at its commit, after all of its statements have
// succeeded, its last statement gets the error.
func testFailedCommit(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO t VALUES (1)")
	insert := "INSERT INTO t VALUES ($1::bigint) RETURNING n"
	for range 3 {
		all := append(transaction(statement(insert, int64(1)), statement(insert, int64(2))),
			statement(insert, int64(1)), statement("SELECT count(*) FROM t"))
		err := d.try(all...)
		if got := outcomes(all...); err != nil || got != "rolled back, 23505, 23505, ok" {
			t.Errorf("%v, the statements: %s; want code 23505 of both commits", err, got)
		}
		if !equal(cells(t, all[0]), bigintBytes(1)) || !equal(cells(t, all[1]), bigintBytes(2)) ||
			!equal(cells(t, all[3]), bigintBytes(1)) {
			t.Errorf("got %q, %q, %q; want 1, 2, 1", all[0].Result, all[1].Result, all[3].Result)
		}
	}
}

// testRefusedValues checks that a statement with a value that no text has fails with its transaction, and
// other transactions succeed.
func testRefusedValues(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	rows := 0
	for range 2 { // first not prepared, then prepared
		for _, c := range []struct {
			name      string
			statement *pgdb.Statement
		}{
			{name: "a NUL byte", statement: statement("SELECT $1::text", "a\x00b")},
			{name: "a NUL byte in an array",
				statement: statement("SELECT $1::text[]", []string{"a", "a\x00b"})},
		} {
			insert := "INSERT INTO t SELECT 1 /* " + c.name + " */"
			all := append([]*pgdb.Statement{statement(insert)},
				transaction(statement(insert), c.statement, statement(insert))...)
			all = append(all, statement(insert))
			err, want := d.try(all...), "ok, rolled back, 22021, rolled back, ok"
			if got := outcomes(all...); err != nil || got != want {
				t.Errorf("%s: %v, the statements: %s, want %s", c.name, err, got, want)
			}
			rows += 2
			d.requireRows(rows, c.name)
		}
	}
}

// testRoundTrips checks that a call on an open connection takes one round trip, whether its statements are
// prepared or not. After a pause, it takes at most one more.
func testRoundTrips(t *testing.T, open openDB, roundTrip time.Duration) {
	network, dsn := slownet.ListenFor(t, cluster.Open(t), roundTrip)
	d := open.connect(t, dsn)
	for _, c := range []struct {
		name     string
		pause    time.Duration
		prepared bool
		joined   bool
		fails    bool
	}{
		{name: "not prepared"},
		{name: "prepared", prepared: true},
		{name: "joined", joined: true},
		{name: "joined and prepared", joined: true, prepared: true},
		{name: "joined and failing", joined: true, fails: true},
		{name: "after a pause", pause: 1100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			minTrips, want := int64(100), int64(1)
			if c.pause > 0 {
				want = 2 // pgx pings the connection
			}
			// Several attempts, because an attempt takes more round trips if the pool opens a connection.
			for attempt := 0; attempt < 3 && minTrips > want; attempt++ {
				var all []*pgdb.Statement
				for i := range 3 {
					sql := fmt.Sprintf("SELECT 1 / $1::bigint /* %d %d %s */", i, attempt, c.name)
					if c.prepared {
						sql = fmt.Sprintf("SELECT %d / $1::bigint", i)
					}
					all = append(all, statement(sql, int64(1)))
				}
				if c.joined {
					transaction(all...)
				}
				d.ping()
				if c.prepared {
					d.run(all...)
				}
				if c.fails {
					all[2].Args[0] = int64(0)
				}
				time.Sleep(c.pause)
				before := network.Turns()
				err := d.try(all...)
				minTrips = min(minTrips, network.Turns()-before)
				if err != nil || (all[2].Err != nil) != c.fails {
					t.Fatalf("%v, last statement %v, want it to fail: %v", err, all[2].Err, c.fails)
				}
			}
			if minTrips > want {
				t.Errorf("took %d round trips of %v, want at most %d", minTrips, roundTrip, want)
			}
		})
	}
}
