package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DB runs the tests of a ratelimit.DB, each on a database of its own. open
// returns one that connects to dsn, which the test closes.
func DB(t *testing.T, open func(t testing.TB, dsn string) ratelimit.DB) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, d *db)
	}{
		{"parameters", testParameters},
		{"arrays", testArrays},
		{"types of null", testNull},
		{"columns", testColumns},
		{"results of all sizes", testResults},
		{"rows together", testRowsTogether},
		{"each statement for itself", testEachForItself},
		{"errors", testErrors},
		{"errors of Row", testRowErrors},
		{"a statement again", testAgain},
		{"many statements", testManyStatements},
		{"much both ways", testMuchBothWays},
		{"Exec", testExec},
		{"at once", testAtOnce},
		{"forgotten statements", testForgotten},
		{"a deadline", testDeadline},
		{"a context that has ended", testEnded},
		{"ended sessions", testEndedSessions},
		{"closed", testDBClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			dsn := cluster.Open(t)
			d := &db{t: t, DB: open(t, dsn), open: open, dsn: dsn}
			defer d.Close()
			test.run(t, d)
		})
	}
	t.Run("a database in another encoding", func(t *testing.T) { testEncoding(t, open) })
	t.Run("no server", func(t *testing.T) { testNoServer(t, open) })
	t.Run("a server that is gone", func(t *testing.T) { testServerGone(t, open) })
	t.Run("a server that hangs", func(t *testing.T) { testServerHangs(t, open) })
}

// db is a DB with a test that ends where it fails.
type db struct {
	ratelimit.DB
	t    *testing.T
	open func(t testing.TB, dsn string) ratelimit.DB
	dsn  string
}

// run runs statements that all succeed.
func (d *db) run(statements ...*ratelimit.Statement) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	started := time.Now()
	if err := d.Run(ctx, statements); err != nil {
		d.t.Fatal(err)
	}
	if took := time.Since(started); took > timeout/2 {
		d.t.Fatalf("an answer that was there took %v", took)
	}
	for i, s := range statements {
		if s.Err != nil || s.Code != "" {
			d.t.Fatalf("statement %d, %.200s: %v, code %q", i, s.SQL, s.Err, s.Code)
		}
	}
}

// query is a statement that keeps its rows.
func query(rows *[][]string, sql string, args ...any) *ratelimit.Statement {
	return &ratelimit.Statement{SQL: sql, Args: args, Row: func(columns [][]byte) error {
		row := make([]string, len(columns))
		for i, column := range columns {
			row[i] = string(column)
			if column == nil {
				row[i] = "NULL"
			}
		}
		*rows = append(*rows, row)
		return nil
	}}
}

// rows runs one statement and returns its rows.
func (d *db) rows(sql string, args ...any) [][]string {
	d.t.Helper()
	var rows [][]string
	d.run(query(&rows, sql, args...))
	return rows
}

// cell runs a statement that has one row of one column.
func (d *db) cell(sql string, args ...any) string {
	d.t.Helper()
	rows := d.rows(sql, args...)
	if len(rows) != 1 || len(rows[0]) != 1 {
		d.t.Fatalf("%s: %d rows, want one of one column", sql, len(rows))
	}
	return rows[0][0]
}

func (d *db) exec(sql string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := d.Exec(ctx, sql); err != nil {
		d.t.Fatal(err)
	}
}

func testResults(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint)")
	if got := d.rows("SELECT n FROM t"); len(got) != 0 {
		t.Errorf("an empty table has %d rows", len(got))
	}
	if got := d.rows("INSERT INTO t VALUES ($1::bigint)", int64(1)); len(got) != 0 {
		t.Errorf("an INSERT that returns nothing has %d rows", len(got))
	}
	if got := d.rows("UPDATE t SET n = 2 RETURNING n"); len(got) != 1 || got[0][0] != bigintBytes(2) {
		t.Errorf("an UPDATE returns %q", got)
	}
	if got := d.rows("SELECT FROM t"); len(got) != 1 || len(got[0]) != 0 {
		t.Errorf("a row without columns came as %q", got)
	}
	if got := d.rows("SELECT n FROM generate_series(1, 20000) n"); len(got) != 20000 || got[19999][0] != "\x00\x00\x4e\x20" {
		t.Errorf("20000 rows came as %d", len(got))
	}
	if got := d.cell("SELECT repeat('x', 3000000)"); len(got) != 3000000 {
		t.Errorf("3000000 bytes came as %d", len(got))
	}
	d.run(&ratelimit.Statement{SQL: "SELECT n FROM generate_series(1, 100) n"}) // nobody reads the rows
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := d.Run(ctx, nil); err != nil {
		t.Errorf("no statements: %v", err)
	}
}

func testEachForItself(t *testing.T, d *db) {
	d.exec("CREATE TABLE t (n bigint PRIMARY KEY)")
	var statements []*ratelimit.Statement
	for _, n := range []int64{1, 2, 1, 3} {
		statements = append(statements, &ratelimit.Statement{SQL: "INSERT INTO t VALUES ($1::bigint)", Args: []any{n}})
	}
	statements = append(statements, &ratelimit.Statement{SQL: "SELECT nonsense FROM t"})
	var rows [][]string
	statements = append(statements, query(&rows, "SELECT n FROM t ORDER BY n"))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := d.Run(ctx, statements); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "", "23505", "", "42703", ""} {
		if got := statements[i]; got.Code != want || (got.Err != nil) != (want != "") {
			t.Errorf("statement %d: %v, code %q, want code %q", i, got.Err, got.Code, want)
		}
	}
	if fmt.Sprint(rows) != fmt.Sprint([][]string{{bigintBytes(1)}, {bigintBytes(2)}, {bigintBytes(3)}}) {
		t.Errorf("the table holds %q, want 1, 2, 3", rows)
	}
	// Each is a transaction of its own: the ids differ.
	var ids [][]string
	d.run(query(&ids, "SELECT pg_current_xact_id()::text"), query(&ids, "SELECT pg_current_xact_id()::text"))
	if ids[0][0] == ids[1][0] {
		t.Errorf("two statements ran in one transaction, %q", ids[0][0])
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
		s := &ratelimit.Statement{SQL: sql, Row: func([][]byte) error { return nil }}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := d.Run(ctx, []*ratelimit.Statement{s})
		cancel()
		if err != nil || s.Err == nil || s.Code != code {
			t.Errorf("%s: Run says %v, the statement %v with code %q; want code %q of the statement alone", sql, err, s.Err, s.Code, code)
		}
	}
	if got := d.cell("SELECT 'still here'::text"); got != "still here" {
		t.Errorf("after errors: %q", got)
	}
	// What the server says besides does no harm.
	d.run(&ratelimit.Statement{SQL: "DO $$ BEGIN RAISE NOTICE 'by the way'; RAISE WARNING 'and'; END $$"}, &ratelimit.Statement{SQL: "DROP TABLE IF EXISTS nothing"})
}

func testRowErrors(t *testing.T, d *db) {
	failure := errors.New("enough")
	calls := 0
	bad := &ratelimit.Statement{SQL: "SELECT n FROM generate_series(1, 1000) n", Row: func([][]byte) error {
		if calls++; calls == 3 {
			return failure
		}
		return nil
	}}
	var rows [][]string
	good := query(&rows, "SELECT 'x'::text")
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := d.Run(ctx, []*ratelimit.Statement{bad, good}); err != nil {
		t.Fatal(err)
	}
	if bad.Err == nil || !errors.Is(bad.Err, failure) || bad.Code != "" || calls != 3 {
		t.Errorf("Row failed: %v, code %q after %d rows; want its error after 3", bad.Err, bad.Code, calls)
	}
	if good.Err != nil || len(rows) != 1 {
		t.Errorf("the statement after it: %v, %q", good.Err, rows)
	}
}

func testAgain(t *testing.T, d *db) {
	s := &ratelimit.Statement{SQL: "SELECT 1 / $1::bigint", Args: []any{int64(0)}}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := d.Run(ctx, []*ratelimit.Statement{s}); err != nil || s.Code != "22012" {
		t.Fatalf("%v, %v, code %q", err, s.Err, s.Code)
	}
	s.Args[0] = int64(1)
	d.run(s)
	// The same text several times in a pipeline.
	var rows [][]string
	sql := "SELECT $1::bigint"
	d.run(query(&rows, sql, int64(1)), query(&rows, sql, int64(2)), query(&rows, sql, int64(3)))
	if fmt.Sprint(rows) != fmt.Sprint([][]string{{bigintBytes(1)}, {bigintBytes(2)}, {bigintBytes(3)}}) {
		t.Errorf("the same text three times: %q", rows)
	}
}

func testManyStatements(t *testing.T, d *db) {
	var statements []*ratelimit.Statement
	rows := make([][][]string, 500)
	for i := range rows {
		statements = append(statements, query(&rows[i], fmt.Sprintf("SELECT $1::bigint + %d", i%50), int64(i)))
	}
	d.run(statements...)
	for i, got := range rows {
		if len(got) != 1 || got[0][0] != bigintBytes(int64(i+i%50)) {
			t.Fatalf("statement %d: %q", i, got)
		}
	}
}

func testMuchBothWays(t *testing.T, d *db) {
	text := strings.Repeat("0123456789", 20000)
	var statements []*ratelimit.Statement
	rows := make([][][]string, 100)
	for i := range rows {
		statements = append(statements, query(&rows[i], "SELECT $1::text", text))
	}
	d.run(statements...)
	for i := range rows {
		if len(rows[i]) != 1 || rows[i][0][0] != text {
			t.Fatalf("statement %d got another text back", i)
		}
	}
}

func testExec(t *testing.T, d *db) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	d.exec("CREATE TABLE t (n bigint); INSERT INTO t VALUES (1); SELECT * FROM t; -- and nothing\n")
	d.exec("")
	// Several commands are one transaction: a lock of the first lasts.
	if err := d.Exec(ctx, "INSERT INTO t VALUES (2); SELECT 1 / 0; INSERT INTO t VALUES (3)"); err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Errorf("the second of three commands fails: %v", err)
	}
	if got := d.cell("SELECT count(*) FROM t"); got != bigintBytes(1) {
		t.Errorf("the table has %x rows, want 1", got)
	}
	if err := d.Exec(ctx, "SELEKT"); err == nil {
		t.Error("no error for nonsense")
	}
	d.exec("SELECT 1")
}

func testAtOnce(t *testing.T, d *db) {
	var group sync.WaitGroup
	for i := 0; i < 24; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 30; n++ {
				want := fmt.Sprintf("%d/%d", i, n)
				var rows [][]string
				ctx, cancel := context.WithTimeout(context.Background(), timeout)
				statements := []*ratelimit.Statement{query(&rows, "SELECT $1::text", want), query(&rows, fmt.Sprintf("SELECT $1::text || '%d'", n), "x")}
				err := d.Run(ctx, statements)
				cancel()
				if err != nil || len(rows) != 2 || rows[0][0] != want || rows[1][0] != fmt.Sprint("x", n) {
					t.Errorf("%s: %v, %q", want, err, rows)
					return
				}
			}
		}()
	}
	group.Wait()
}
