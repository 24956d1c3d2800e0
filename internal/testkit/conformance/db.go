package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// openDB opens a DB on dsn. The test closes it.
type openDB func(t testing.TB, dsn string) pgdb.DB

// roundTrips are the round trip times of networks between a DB and its server. Each test runs over one of
// them, and testRoundTrips over the two slow ones.
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
		run func(t *testing.T, open openDB)
		own bool // the test starts its own server
	}{
		"no server":                   {testNoServer, false},
		"a server that is killed":     {testServerGone, true},
		"a server that hangs":         {testServerHangs, true},
		"a process that is late":      {testLateProcess, true},
		"a login that is refused":     {testRefusedLogin, false},
		"a login slower than calls":   {testCauseOverASlowNetwork, false},
		"a primary that was replaced": {testReplacedPrimary, false},
		"a password that was changed": {testChangedPassword, true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.own && testing.Short() {
				t.Skip("make test-all runs it: it starts a server")
			}
			t.Parallel()
			test.run(t, open)
		})
	}
	runTests(t, open, append(slices.Clone(statementTests), connectionTests...))
}

// Statements runs the tests of DB on statements. They do not depend on the opening and replacement of
// connections, which a program with its own pool controls.
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
		{"statements fail independently", testStatementsFailIndependently},
		{"transactions", testTransactions},
		{"a transaction that fails", testFailedTransactions},
		{"a transaction that fails at its commit", testFailedCommit},
		{"a transaction that cannot be sent", testUnsendable},
		{"errors", testErrors},
		{"unnamed statements", testUnnamed},
		{"many statements", testManyStatements},
		{"Exec", testExec},
		{"concurrent calls", testConcurrentCalls},
		{"forgotten statements", testForgotten},
		{"altered tables", testAltered},
		{"a read-only session", testReadOnly},
		{"a deadline", testDeadline},
		{"a context that has ended", testEnded},
		{"ended sessions", testEndedSessions},
		{"lost connections", testLostConnections},
		{"fewer connections than calls", testFewerConnections},
		{"closed", testDBClosed},
		{"settings that do harm", testSettings},
		{"settings that are named", testHarmful},
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
			dsn := cluster.Open(t)
			d := &db{t: t, DB: open(t, dsn), open: open, dsn: dsn}
			defer d.Close()
			test.run(t, d)
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

// try runs statements and returns the error of Run.
func (d *db) try(statements ...*pgdb.Statement) error {
	return d.tryFor(timeout, statements...)
}

// tryFor is like try, but bounds the call by limit. The call must end within grace after that.
func (d *db) tryFor(limit time.Duration, statements ...*pgdb.Statement) error {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	err := d.Run(ctx, statements)
	if took := time.Since(start); took > limit+grace {
		d.t.Errorf("a call with a deadline of %v took %v, want at most %v more", limit, took, grace)
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

// equal reports whether columns are equal.
func equal(got []string, want ...string) bool {
	return fmt.Sprintf("%q", got) == fmt.Sprintf("%q", want)
}

func (d *db) tryExec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.Exec(ctx, sql)
}

func (d *db) exec(sql string) {
	d.t.Helper()
	if err := d.tryExec(sql); err != nil {
		d.t.Fatal(err)
	}
}

// awaitSessions waits until want sessions of the database have a property, a condition in SQL. It does not
// count its own session.
func (d *db) awaitSessions(property string, want int64) {
	d.t.Helper()
	sql := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> " +
		"pg_backend_pid() AND " + property
	await.Within(d.t, timeout, fmt.Sprintf("%d sessions with %s", want, property),
		func() bool { return d.queryCell(sql) == bigintBytes(want) })
}

func testResults(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	for _, sql := range []string{"SELECT n FROM t", "INSERT INTO t VALUES (1)", "SELECT FROM t", "",
		"-- nothing"} {
		if got := d.queryCells(sql); len(got) != 0 {
			t.Errorf("%s: got %q, want no rows", sql, got)
		}
	}
	if got := d.queryCells("UPDATE t SET n = 2 RETURNING n"); !equal(got, bigintBytes(2)) {
		t.Errorf("an UPDATE returns %q, want 2", got)
	}
	if got := d.queryCells("SELECT n FROM generate_series(1, 20000) n"); len(got) != 20000 ||
		got[19999] != "\x00\x00\x4e\x20" {
		t.Errorf("got %d rows, want 20000", len(got))
	}
	if got := d.queryCells("SELECT " + strings.Repeat("1::bigint, ", 1599) + "1"); len(got) != 1600 {
		t.Errorf("got %d columns, want 1600", len(got))
	}
	if got := d.queryCell("SELECT repeat('x', 3000000)"); len(got) != 3000000 {
		t.Errorf("got %d bytes, want 3000000", len(got))
	}
	s := statement("SELECT n FROM generate_series(1, $1::bigint) n", int64(100))
	d.run(s)
	memory := &s.Result[0]
	s.Args[0] = int64(2)
	if d.run(s); !equal(cells(t, s), bigintBytes(1), bigintBytes(2)) || &s.Result[0] != memory {
		t.Errorf("a statement that runs again returns %q, want 1 and 2 in the same memory", cells(t, s))
	}
	if err := d.try(); err != nil {
		t.Errorf("no statements: error %v, want none", err)
	}
}

func testErrors(t *testing.T, d *db) {
	for sql, code := range map[string]string{
		"SELEKT":                "42601",
		"SELECT * FROM nothing": "42P01",
		"SELECT 1 / (3 - n) FROM generate_series(1,9) n": "22012",
		"SELECT n'": "42601",
		"DO $$ BEGIN RAISE SQLSTATE '40001'; END $$": "40001",
		"DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$": "40P01",
	} {
		s := statement(sql)
		err := d.try(s)
		if err != nil || s.Err == nil || s.Code != code {
			t.Errorf("%s: Run returns %v, the statement %v with code %q; want only its code %q", sql, err,
				s.Err, s.Code, code)
		}
	}
	s := statement("SELECT 1 / $1::bigint", int64(0))
	if err := d.try(s); err != nil || s.Code != "22012" {
		t.Fatalf("division by zero: %v, %v, code %q; want code 22012", err, s.Err, s.Code)
	}
	s.Args[0] = int64(1)
	d.run(s) // the same statement value again
	// Notices are ignored.
	d.run(statement("DO $$ BEGIN RAISE NOTICE 'by the way'; RAISE WARNING 'and'; END $$"),
		statement("DROP TABLE IF EXISTS nothing"))
}

// testUnnamed checks that the server prepares only statements that are not Unnamed.
func testUnnamed(t *testing.T, d *db) {
	for i := 0; i < 3; i++ {
		unnamed, named := statement("SELECT $1::bigint /* unnamed */", int64(i)),
			statement("SELECT $1::bigint /* named */", int64(i))
		unnamed.Unnamed = true
		d.run(unnamed, named)
		if !equal(cells(t, unnamed), bigintBytes(int64(i))) ||
			!equal(cells(t, named), bigintBytes(int64(i))) {
			t.Errorf("got %q and %q, want %d", cells(t, unnamed), cells(t, named), i)
		}
	}
	for text, want := range map[string]int64{"unnamed": 0, "named": 1} {
		if got := d.queryCell("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%/* ' || "+
			"$1::text || ' */%'", text); got != bigintBytes(want) {
			t.Errorf("%x prepared statements that are %s, want %d", got, text, want)
		}
	}
}

func testManyStatements(t *testing.T, d *db) {
	var statements []*pgdb.Statement
	for i := 0; i < 500; i++ {
		s := statement(fmt.Sprintf("SELECT $1::bigint + %d", i%50), int64(i))
		s.Joined = i%3 > 0
		statements = append(statements, s)
	}
	d.run(statements...)
	for i, s := range statements {
		if got := cells(t, s); !equal(got, bigintBytes(int64(i+i%50))) {
			t.Fatalf("statement %d: got %q, want %d", i, got, i+i%50)
		}
	}
	// Both directions carry more bytes than buffers hold, so neither side may wait for the other one to read.
	text := strings.Repeat("0123456789", 12000)
	for i, s := range statements[:100] {
		s.SQL, s.Args = "SELECT $1::text", []any{text}
		s.Joined = i%2 > 0
	}
	d.run(statements[:100]...)
	for i, s := range statements[:100] {
		if !equal(cells(t, s), text) {
			t.Fatalf("statement %d: got %d bytes, want its parameter", i, len(s.Result))
		}
	}
}

func testExec(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint); INSERT INTO t VALUES (1); SELECT * FROM t; -- and nothing\n")
	d.exec("")
	// Several commands are one transaction: the first one is rolled back too.
	if err := d.tryExec("INSERT INTO t VALUES (2); SELECT 1 / 0; INSERT INTO t VALUES (3)"); err == nil ||
		!strings.Contains(err.Error(), "division by zero") {
		t.Errorf("three commands, the second fails: error %v, want division by zero", err)
	}
	if got := d.queryCell("SELECT count(*) FROM t"); got != bigintBytes(1) {
		t.Errorf("the table has %x rows, want 1", got)
	}
	for _, sql := range []string{"SELEKT", "SELECT 1 \x00"} {
		if err := d.tryExec(sql); err == nil {
			t.Errorf("%q: no error, want one", sql)
		}
	}
	d.exec("SELECT 1")
}

func testConcurrentCalls(t *testing.T, d *db) {
	var group sync.WaitGroup
	for i := 0; i < 24; i++ {
		group.Go(func() {
			for n := 0; n < 10; n++ {
				want := fmt.Sprintf("%d/%d", i, n)
				a, b := statement("SELECT $1::text", want),
					statement(fmt.Sprintf("SELECT $1::text || '%d'", n), "x")
				a.Joined = n%2 > 0
				err := d.try(a, b)
				if err != nil || !equal(cells(t, a), want) || !equal(cells(t, b), fmt.Sprint("x", n)) {
					t.Errorf("got %v, %q, %q; want %q and x%d", err, cells(t, a), cells(t, b), want, n)
					return
				}
			}
		})
	}
	group.Wait()
}
