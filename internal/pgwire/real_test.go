package pgwire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// query runs a statement and returns its rows.
func query(t testing.TB, p *Pool, sql string, args ...any) [][][]byte {
	t.Helper()
	var rows [][][]byte
	st := stmt(sql, args...)
	st.Row = collect(&rows)
	run(t, p, st)
	return rows
}

func number(t testing.TB, p *Pool, sql string, args ...any) int64 {
	t.Helper()
	rows := query(t, p, sql, args...)
	if len(rows) != 1 || len(rows[0]) != 1 || len(rows[0][0]) != 8 {
		t.Fatalf("%s: %q", sql, rows)
	}
	return int64(binary.BigEndian.Uint64(rows[0][0]))
}

// TestParametersThere sends every kind of parameter to a server and back.
func TestParametersThere(t *testing.T) {
	p := open(t, cluster.Open(t), Options{})
	awkward := []string{"", " ", "NULL", "null", `"`, `\`, `\\"`, "{}", "{a,b}", "a,b", "'", "é漢🙂", "\n\t\r\x01\x7f", "-- x", "$1", `\N`}
	for i := 0; i < 2; i++ { // not prepared and prepared
		rows := query(t, p, "SELECT e FROM unnest($1::text[]) WITH ORDINALITY AS u(e, i) ORDER BY i", awkward)
		for i, row := range rows {
			if string(row[0]) != awkward[i] {
				t.Errorf("%q became %q", awkward[i], row[0])
			}
		}
		if len(rows) != len(awkward) {
			t.Errorf("%d rows", len(rows))
		}
		for _, s := range awkward {
			if rows := query(t, p, "SELECT $1::text", s); string(rows[0][0]) != s {
				t.Errorf("%q became %q", s, rows[0][0])
			}
		}
		numbers := []int64{0, -1, 1 << 62, -1 << 63, 1<<63 - 1}
		for i, row := range query(t, p, "SELECT e FROM unnest($1::bigint[]) WITH ORDINALITY AS u(e, i) ORDER BY i", numbers) {
			if got := int64(binary.BigEndian.Uint64(row[0])); got != numbers[i] {
				t.Errorf("%d became %d", numbers[i], got)
			}
			if got := number(t, p, "SELECT $1::bigint", numbers[i]); got != numbers[i] {
				t.Errorf("%d became %d", numbers[i], got)
			}
		}
		for _, c := range []struct {
			sql string
			arg any
		}{{"SELECT cardinality($1::text[])::bigint", []string{}}, {"SELECT cardinality($1::bigint[])::bigint", []int64(nil)}} {
			if n := number(t, p, c.sql, c.arg); n != 0 {
				t.Errorf("%s: %d", c.sql, n)
			}
		}
		// NULL first, and then a value, of one text.
		if rows := query(t, p, "SELECT $1::bigint, $2::text, $3::text[]", nil, nil, nil); rows[0][0] != nil || rows[0][1] != nil || rows[0][2] != nil {
			t.Errorf("%q", rows)
		}
		if rows := query(t, p, "SELECT $1::bigint, $2::text, $3::text[]", int64(1), "a", []string{"b"}); string(rows[0][0]) != "\x00\x00\x00\x00\x00\x00\x00\x01" || string(rows[0][1]) != "a" || rows[0][2] == nil {
			t.Errorf("%q", rows)
		}
	}
}

// TestRowsThere reads rows with NULLs, of many columns, none, and many.
func TestRowsThere(t *testing.T) {
	p := open(t, cluster.Open(t), Options{})
	for i := 0; i < 2; i++ {
		rows := query(t, p, `SELECT i, CASE WHEN i % 3 <> 0 THEN i::int END, now(), i::float8, i % 2 = 0, repeat('x', i::int % 5)
			FROM generate_series(1, 5000) AS i`)
		if len(rows) != 5000 {
			t.Fatalf("%d rows", len(rows))
		}
		for i, row := range rows {
			n := i + 1
			if len(row) != 6 || binary.BigEndian.Uint32(row[0]) != uint32(n) || (row[1] == nil) != (n%3 == 0) || len(row[2]) != 8 || len(row[3]) != 8 ||
				row[4][0] != byte(1-n%2) || len(row[5]) != n%5 {
				t.Fatalf("row %d: %q", n, row)
			}
		}
		rows = query(t, p, "SELECT i, CASE WHEN i % 3 <> 0 THEN i END, -i FROM generate_series(1::bigint, 5000) AS i")
		for i, row := range rows {
			n := int64(i + 1)
			if int64(binary.BigEndian.Uint64(row[0])) != n || (row[1] == nil) != (n%3 == 0) || row[1] != nil && int64(binary.BigEndian.Uint64(row[1])) != n ||
				int64(binary.BigEndian.Uint64(row[2])) != -n {
				t.Fatalf("row %d: %q", n, row)
			}
		}
		if rows := query(t, p, "SELECT 1 WHERE false"); len(rows) != 0 {
			t.Errorf("%q", rows)
		}
		if rows := query(t, p, "SELECT FROM generate_series(1, 3)"); len(rows) != 3 || len(rows[0]) != 0 {
			t.Errorf("%q", rows)
		}
		if rows := query(t, p, ""); len(rows) != 0 {
			t.Errorf("%q", rows)
		}
		if rows := query(t, p, "SELECT repeat('x', 5000000)"); len(rows[0][0]) != 5000000 {
			t.Errorf("%d bytes", len(rows[0][0]))
		}
	}
	columns := strings.TrimSuffix(strings.Repeat("1::bigint,", 1600), ",")
	if rows := query(t, p, "SELECT "+columns); len(rows[0]) != 1600 {
		t.Errorf("%d columns", len(rows[0]))
	}
}

// TestTransactions: each statement commits alone, or not.
func TestTransactions(t *testing.T) {
	p := open(t, cluster.Open(t), Options{})
	ctx := within(t, 10*time.Second)
	if err := p.Exec(ctx, "CREATE TABLE a (n bigint PRIMARY KEY); CREATE TABLE b (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO b VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	insert, late := "INSERT INTO a VALUES ($1::bigint)", "INSERT INTO b VALUES ($1::bigint)"
	for i := 0; i < 2; i++ {
		all := []*ratelimit.Statement{stmt(insert, int64(1)), stmt(insert, int64(1)), stmt(insert, int64(2)), stmt(late, int64(1)), stmt(late, int64(2)), stmt("SELECT nonsense"), stmt("SELECT 1/0"), stmt(insert, int64(3))}
		if err := p.Run(ctx, all); err != nil {
			t.Fatal(err)
		}
		codes := ""
		for _, st := range all {
			if (st.Err == nil) != (st.Code == "") {
				t.Errorf("%s: %v, %q", st.SQL, st.Err, st.Code)
			}
			codes += st.Code + " "
		}
		if want := " 23505  23505  42703 22012  "; codes != want {
			t.Errorf("codes %q, want %q", codes, want)
		}
		if n := number(t, p, "SELECT count(*) FROM a") + 10*number(t, p, "SELECT count(*) FROM b"); n != 23 {
			t.Errorf("%d rows", n)
		}
		if err := p.Exec(ctx, "DELETE FROM a; DELETE FROM b WHERE n > 1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Exec(ctx, "INSERT INTO a VALUES (1); SELECT 1/0"); err == nil || !strings.Contains(err.Error(), "SQLSTATE 22012") {
		t.Error(err)
	}
	if n := number(t, p, "SELECT count(*) FROM a"); n != 0 {
		t.Errorf("%d rows of a text that failed", n)
	}
	if err := p.Exec(ctx, "COPY a FROM STDIN"); err == nil {
		t.Error("COPY is not refused")
	}
	if err := p.Exec(ctx, "BEGIN"); err != nil {
		t.Error(err)
	}
	run(t, p, stmt(insert, int64(7)))
	q := open(t, "postgres://"+p.cfg.user+"@"+p.cfg.targets[0].String()+"/"+p.cfg.dbname+"?sslmode=disable", Options{})
	if n := number(t, q, "SELECT count(*) FROM a"); n != 1 {
		t.Error("a statement ran in somebody's transaction")
	}
}

// TestForgottenStatements: what makes the server lose or outdate prepared
// statements does not show.
func TestForgottenStatements(t *testing.T) {
	p := open(t, cluster.Open(t), Options{MaxConns: 1, Logger: func(string) {}})
	ctx := within(t, 20*time.Second)
	if err := p.Exec(ctx, "CREATE TABLE a (n bigint); INSERT INTO a VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	use := func(columns int) {
		t.Helper()
		rows, other := query(t, p, "SELECT * FROM a"), query(t, p, "SELECT $1::bigint", int64(3))
		if len(rows) != 1 || len(rows[0]) != columns || len(other) != 1 {
			t.Errorf("%q, %q", rows, other)
		}
	}
	use(1)
	use(1)
	for i, sql := range []string{
		"ALTER TABLE a ADD m text", "ALTER TABLE a ALTER n TYPE text", "ALTER TABLE a DROP m", "DEALLOCATE ALL", "DISCARD ALL", "DEALLOCATE ALL; SELECT 1",
	} {
		if err := p.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
		columns := 1
		if i < 2 {
			columns = 2
		}
		use(columns)
		use(columns)
	}
	if p.strikes != 0 {
		t.Errorf("%d strikes", p.strikes)
	}
	// Behind our back.
	for i := 0; i < 4; i++ {
		if err := p.Exec(ctx, "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"); err != nil {
			t.Fatal(err)
		}
		use(1)
		use(1)
		want := i + 1
		if want > 2 {
			want = 2 // the pool has given up names
		}
		if p.strikes != want || p.unnamed != (want == 2) {
			t.Errorf("%d strikes, unnamed %v; want %d", p.strikes, p.unnamed, want)
		}
	}
}

// TestTimeoutThere: a statement that runs out of its time is cancelled on the server.
func TestTimeoutThere(t *testing.T) {
	p := open(t, cluster.Open(t), Options{MaxConns: 2})
	before, slow := stmt("SELECT 1"), stmt("SELECT pg_sleep(60) /* slow */")
	start := time.Now()
	err := p.Run(within(t, 200*time.Millisecond), []*ratelimit.Statement{before, slow, stmt("SELECT 2")})
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 200*time.Millisecond+grace || before.Err != nil || !errors.Is(slow.Err, context.DeadlineExceeded) {
		t.Errorf("%v after %v; %v, %v", err, took, before.Err, slow.Err)
	}
	eventually(t, "it ends on the server", func() bool {
		return number(t, p, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%/* slow */%' AND pid <> pg_backend_pid() AND datname = current_database()") == 0
	})
	if p.open > 2 {
		t.Errorf("%d connections", p.open)
	}
}

// TestTerminated: the server ends connections, idle and busy ones.
func TestTerminated(t *testing.T) {
	dsn := cluster.Open(t)
	p, killer := open(t, dsn, Options{}), open(t, dsn, Options{})
	kill := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
	for i := 0; i < 50; i++ {
		run(t, p, stmt("SELECT 1"), stmt("SELECT 2"))
		run(t, killer, stmt(kill)) // and use it before the end may be there
		run(t, p, stmt("SELECT 1"), stmt("SELECT 2"))
	}
	done := make(chan error)
	slow, after := stmt("SELECT pg_sleep(60)"), stmt("SELECT 1")
	go func() { done <- p.Run(within(t, 10*time.Second), []*ratelimit.Statement{slow, after}) }()
	eventually(t, "it runs", func() bool {
		return number(t, killer, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid() AND datname = current_database()") == 1
	})
	// A first kill may come so early that the statement had not begun: then it is
	// sent again, on another connection.
	for ended := false; !ended; {
		run(t, killer, stmt(kill))
		select {
		case err := <-done:
			ended = true
			if err == nil || slow.Code != "57P01" || after.Err == nil {
				t.Errorf("%v, %v, %v", err, slow.Err, after.Err)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestRestart: the server is gone for a while, by all means, and each time is
// used again when it is back, without a failed call then.
func TestRestart(t *testing.T) {
	c := cluster.Private(t, cluster.Options{})
	p := open(t, c.DSN("postgres"), Options{})
	ctx := within(t, 2*time.Minute)
	use := func() {
		var wg sync.WaitGroup
		for i := 0; i < 8; i++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				succeeds(t, p, stmt("SELECT pg_sleep(0.01)"))
			}()
		}
		wg.Wait()
	}
	use()
	for name, stop := range map[string]func() error{"stop": c.Stop, "kill": c.Kill} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		st := stmt("SELECT 1")
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{st}); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		use()
		// And with no call meanwhile.
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := c.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		use()
	}
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 10; i++ {
		start := time.Now()
		err := p.Run(within(t, 50*time.Millisecond), []*ratelimit.Statement{stmt("SELECT 1")})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 50*time.Millisecond+grace {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	run(t, p, stmt("SELECT 1"))
	eventually(t, "no more connections than allowed", func() bool {
		return number(t, p, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") <= int64(p.o.MaxConns)
	})
}

// TestManyThere runs a lot at once, and counts.
func TestManyThere(t *testing.T) {
	p := open(t, cluster.Open(t), Options{MaxConns: 4})
	if err := p.Exec(within(t, 5*time.Second), "CREATE TABLE a (k text PRIMARY KEY, n bigint)"); err != nil {
		t.Fatal(err)
	}
	const callers, calls = 8, 50
	var wg sync.WaitGroup
	for i := 0; i < callers; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < calls; i++ {
				all := make([]*ratelimit.Statement, 5)
				for j := range all {
					all[j] = stmt("INSERT INTO a SELECT e, 1 FROM unnest($1::text[]) e ORDER BY 1 ON CONFLICT (k) DO UPDATE SET n = a.n + 1 RETURNING n",
						[]string{fmt.Sprint(j), fmt.Sprint("x", i)})
				}
				succeeds(t, p, all...)
			}
		}()
	}
	wg.Wait()
	if n := number(t, p, "SELECT sum(n)::bigint FROM a"); n != callers*calls*10 {
		t.Errorf("counted %d", n)
	}
}
