package conformance

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// openDB opens a DB on dsn, which the caller closes.
type openDB func(t testing.TB, dsn string) pgdb.DB

// roundTrips are the round trip times of the networks between a DB and its server. Without -short, each test
// runs over one of these networks, and testRoundTrips over the two slowest.
var roundTrips = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond}

// DB runs the tests of a pgdb.DB, each on its own database. Without -short, it runs them a second time over a
// slow network.
func DB(t *testing.T, open func(t testing.TB, dsn string) pgdb.DB) {
	for _, roundTrip := range roundTrips[1:] {
		if testing.Short() {
			break // make test-all runs it
		}
		t.Run(fmt.Sprint("round trips of ", roundTrip),
			func(t *testing.T) { testRoundTrips(t, open, roundTrip) })
	}
	for name, test := range map[string]struct {
		run          func(t *testing.T, open openDB)
		startsServer bool // whether the test starts its own server
	}{
		"no server":                   {testNoServer, false},
		"a server that is killed":     {testServerGone, true},
		"a server that hangs":         {testServerHangs, true},
		"a process that is late":      {testLateProcess, true},
		"sessions that hang":          {testSessionsHang, true},
		"a login slower than calls":   {testCauseOverASlowNetwork, false},
		"a primary that was replaced": {testReplacedPrimary, false},
	} {
		t.Run(name, func(t *testing.T) {
			if test.startsServer && testing.Short() {
				t.Skip("make test-all runs it: it starts a server")
			}
			t.Parallel()
			test.run(t, open)
		})
	}
	runTests(t, open, append(slices.Clone(statementTests), connectionTests...))
}

// Statements runs only the tests of DB that do not depend on the opening and the replacement of connections,
// for a DB on a pool that the program controls.
func Statements(t *testing.T, open func(t testing.TB, dsn string) pgdb.DB) {
	runTests(t, open, statementTests)
}

// dbTest is a test on one DB.
type dbTest struct {
	name string
	run  func(t *testing.T, d *db)
}

var (
	statementTests = []dbTest{
		{"parameters", testParameters},
		{"arrays", testArrays},
		{"types of null", testNull},
		{"columns", testColumns},
		{"results of all sizes", testResults},
		{"rows of equal length", testEqualRows},
		{"transactions", testTransactions},
		{"a transaction that fails", testFailedTransactions},
		{"a transaction that fails at its commit", testFailedCommit},
		{"refused values", testRefusedValues},
		{"errors", testErrors},
		{"unnamed statements", testUnnamed},
		{"many statements", testManyStatements},
		{"Exec", testExec},
		{"concurrent calls", testConcurrentCalls},
		{"forgotten statements", testForgotten},
		{"a name that exists", testExistingName},
		{"altered tables", testAltered},
		{"a read-only session", testReadOnly},
		{"a deadline", testDeadline},
		{"a context that has ended", testEnded},
		{"ended sessions", testEndedSessions},
		{"fewer connections than calls", testFewerConnections},
		{"closed", testDBClosed},
		{"settings that do harm", testSettings},
	}
	connectionTests = []dbTest{
		{"a connection after a pause", testKeptConnection},
		{"a connection that is too old", testReplacedConnection},
	}
)

func runTests(t *testing.T, open openDB, tests []dbTest) {
	for i, test := range tests {
		run := func(t *testing.T, open openDB) {
			t.Parallel()
			test.run(t, open.connect(t, cluster.Open(t)))
		}
		t.Run(test.name, func(t *testing.T) { run(t, open) })
		if testing.Short() {
			continue
		}
		roundTrip := roundTrips[i%len(roundTrips)]
		t.Run(fmt.Sprint(test.name, " over a network of ", roundTrip), func(t *testing.T) {
			run(t, func(t testing.TB, dsn string) pgdb.DB {
				_, slow := slownet.ListenFor(t, dsn, roundTrip)
				return open(t, slow)
			})
		})
	}
}

// db is a DB with helpers that fail its test.
type db struct {
	pgdb.DB
	t    *testing.T
	open openDB
	dsn  string
}

// connect opens a DB, and closes it at the end of the test.
func (open openDB) connect(t *testing.T, dsn string) *db {
	t.Helper()
	d := &db{t: t, DB: open(t, dsn), open: open, dsn: dsn}
	t.Cleanup(d.Close)
	return d
}

// try runs statements and returns the error of Run.
func (d *db) try(statements ...*pgdb.Statement) error {
	return d.tryFor(timeout, statements...)
}

// tryFor is like try, but with limit as the timeout of the call. The test fails if the call takes more than
// grace beyond the timeout.
func (d *db) tryFor(limit time.Duration, statements ...*pgdb.Statement) error {
	d.t.Helper()
	start := time.Now()
	err := d.Run(d.t.Context(), limit, statements)
	if took := time.Since(start); took > limit+grace {
		d.t.Errorf("a call with a timeout of %v took %v, want at most %v more", limit, took, grace)
	}
	return err
}

// run runs statements, and fails the test unless all succeed.
func (d *db) run(statements ...*pgdb.Statement) {
	d.t.Helper()
	start := time.Now()
	if err := d.try(statements...); err != nil {
		d.t.Fatal(err)
	}
	if took := time.Since(start); took > timeout/2 {
		d.t.Fatalf("the statements took %v, want at most %v", took, timeout/2)
	}
	for i, s := range statements {
		if s.Err != nil || s.Code != "" {
			d.t.Fatalf("statement %d, %.200s: error %v, code %q, want none", i, s.SQL, s.Err, s.Code)
		}
	}
}

// ping fails the test unless a statement succeeds.
func (d *db) ping() {
	d.t.Helper()
	d.run(statement("SELECT 1"))
}

// statement returns a statement for a DB.
func statement(sql string, args ...any) *pgdb.Statement {
	return &pgdb.Statement{SQL: sql, Args: args}
}

// transaction joins statements into one transaction.
func transaction(statements ...*pgdb.Statement) []*pgdb.Statement {
	for _, s := range statements[:len(statements)-1] {
		s.Joined = true
	}
	return statements
}

// cells returns the columns of a statement's result, row by row. NULL is "NULL".
func cells(t testing.TB, s *pgdb.Statement) []string {
	t.Helper()
	var columns []string
	for rest := s.Result; len(rest) > 0; {
		if len(rest) < 4 {
			t.Fatalf("%.200s: the result ends with %x, want a length of 4 bytes", s.SQL, rest)
		}
		size := int32(binary.BigEndian.Uint32(rest))
		rest = rest[4:]
		if size == -1 {
			columns = append(columns, "NULL")
			continue
		}
		if size < 0 || int(size) > len(rest) {
			t.Fatalf("%.200s: a column has %d bytes, want at most the %d that are left", s.SQL, size,
				len(rest))
		}
		columns = append(columns, string(rest[:size]))
		rest = rest[size:]
	}
	return columns
}

// queryCells runs one statement and returns the columns of its result, row by row.
func (d *db) queryCells(sql string, args ...any) []string {
	d.t.Helper()
	s := statement(sql, args...)
	d.run(s)
	return cells(d.t, s)
}

// queryCell runs a statement and returns its result, which must be one row of one column.
func (d *db) queryCell(sql string, args ...any) string {
	d.t.Helper()
	columns := d.queryCells(sql, args...)
	if len(columns) != 1 {
		d.t.Fatalf("%s: %d columns, want one", sql, len(columns))
	}
	return columns[0]
}

// requireRows fails the test unless the table t has n rows. when completes the message.
func (d *db) requireRows(n int, when string) {
	d.t.Helper()
	if got := d.queryCell("SELECT count(*) FROM t"); got != bigintBytes(int64(n)) {
		d.t.Fatalf("the table has %x rows, want %d: %s", got, n, when)
	}
}

// process returns the server's process that runs a statement.
func (d *db) process() string {
	d.t.Helper()
	return d.queryCell("SELECT pg_backend_pid()::bigint")
}

// equal reports whether columns are equal.
func equal(got []string, want ...string) bool {
	return fmt.Sprintf("%q", got) == fmt.Sprintf("%q", want)
}

func (d *db) tryExec(sql string) error {
	return d.Exec(d.t.Context(), timeout, sql)
}

func (d *db) exec(sql string) {
	d.t.Helper()
	if err := d.tryExec(sql); err != nil {
		d.t.Fatal(err)
	}
}

// fromOtherSessions is the end of a SELECT from the other sessions on the database. A condition follows.
const fromOtherSessions = " FROM pg_stat_activity WHERE datname = current_database() " +
	"AND pid <> pg_backend_pid() AND "

// awaitSessions waits until want other sessions on the database meet a condition in SQL.
func (d *db) awaitSessions(condition string, want int64) {
	d.t.Helper()
	await.Within(d.t, timeout, fmt.Sprintf("%d sessions with %s", want, condition), func() bool {
		return d.queryCell("SELECT count(*)"+fromOtherSessions+condition) == bigintBytes(want)
	})
}

// openSeveral runs statements at the same time, so that the DB has several connections.
func (d *db) openSeveral() {
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { d.run(statement("SELECT pg_sleep(0.3)")) })
	}
	group.Wait()
}

// endSessions ends the other sessions on the database that meet a condition in SQL.
func (d *db) endSessions(condition string) {
	d.t.Helper()
	d.queryCells("SELECT pg_terminate_backend(pid, 5000)::text" + fromOtherSessions + condition)
}
