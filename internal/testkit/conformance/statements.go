package conformance

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// testResults checks that a statement returns all of its rows and columns, whatever their number and size.
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

// testErrors checks that a statement that fails has the SQLSTATE, and that Run returns nil.
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
	for i := range 3 {
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

// testManyStatements checks that one call runs many statements, and statements with long parameters.
func testManyStatements(t *testing.T, d *db) {
	var statements []*pgdb.Statement
	for i := range 500 {
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
	// Parameters and results are larger than the buffers of the network. Unless the DB reads results before
	// it has written all parameters, it and the server wait for each other.
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

// testExec checks that Exec runs several commands as one transaction.
func testExec(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint); INSERT INTO t VALUES (1); SELECT * FROM t; -- and nothing\n")
	d.exec("")
	// Several commands are one transaction: the first one is rolled back too.
	err := d.tryExec("INSERT INTO t VALUES (2); SELECT 1 / 0; INSERT INTO t VALUES (3)")
	if !strings.Contains(fmt.Sprint(err), "division by zero") {
		t.Errorf("three commands, the second fails: error %v, want division by zero", err)
	}
	d.requireRows(1, "after a failure")
	for _, sql := range []string{"SELEKT", "SELECT 1 \x00"} {
		if err := d.tryExec(sql); err == nil {
			t.Errorf("%q: no error, want one", sql)
		}
	}
	d.exec("SELECT 1")
}

// testConcurrentCalls checks that each concurrent call gets the results of its own statements.
func testConcurrentCalls(t *testing.T, d *db) {
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			for n := range 10 {
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
