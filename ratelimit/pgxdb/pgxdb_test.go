package pgxdb_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

func open(t testing.TB, dsn string) ratelimit.DB {
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestConformance(t *testing.T) { conformance.DB(t, open) }

func TestStoreConformance(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store {
		return ratelimit.NewPostgres(open(t, cluster.Open(t)), ratelimit.PostgresOptions{Report: func(err error) { t.Error(err) }})
	})
}

// TestDSN: what is wrong with a DSN is said, and never the password.
func TestDSN(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:s3cr3t@h:port/d", "postgres://u:s3cr3t@h/d?sslmode=perhaps", "host=h password=s3cr3t port=x", "nonsense s3cr3t",
		"postgres://u:s3cr3t@h/d?pool_max_conns=many", "postgres://u:s3cr3t%zz@h/d", "host=h user=u password=my s3cr3t sslmode=disable",
		"postgres://u:a?s3cr3t/b@h/d", "postgres://u:s3cr3t%/b@h/d", "postgres://u:a/s3cr3t%x@h/d", "postgres://u:a/b?s3cr3t@h/d",
		"postgres://u:pa@s3cr3t@h/d", "postgres://u:s3cr3t@h/d?sslmode=verify-ca", "postgres://u:s3cr3t@h/d?target_session_attrs=some",
	} {
		db, err := pgxdb.Open(dsn, pgxdb.Options{})
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != "dsn" || db != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// TestDSNTellsWhatIsWrong without the DSN.
func TestDSNTellsWhatIsWrong(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p@h/d?target_session_attrs=some":  "target_session_attrs",
		"postgres://u:p@h/d?sslmode=perhaps":            "sslmode",
		"postgres://u:p@h/d?sslmode=verify-ca":          "sslrootcert",
		"host=h connect_timeout=long":                   "connect_timeout",
		"postgres://u:p@h/d?sslrootcert=/not/there.pem": "/not/there.pem",
	} {
		_, err := pgxdb.Open(dsn, pgxdb.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it to name %s", dsn, err, want)
		}
	}
}

// TestMaxConns bounds the connections, which are made when they are needed.
func TestMaxConns(t *testing.T) {
	for most, want := range map[int]int64{0: 8, 3: 3, -5: 5} { // -5: 5 by the DSN
		dsn := cluster.Open(t) // its own: a connection that is closed may show for a while
		bounded := dsn
		if most < 0 {
			bounded += "&pool_max_conns=" + strconv.Itoa(-most)
		}
		db, err := pgxdb.Open(bounded, pgxdb.Options{MaxConns: most})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		for range 12 {
			go func() { done <- db.Exec(context.Background(), "SELECT pg_sleep(1)") }()
		}
		open := int64(0)
		watch, err := pgxdb.Open(dsn+"&application_name=watch", pgxdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := &ratelimit.Statement{SQL: "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'watch'",
			Row: func(columns [][]byte) error { open = max(open, int64(columns[0][7])); return nil }}
		for waiting := 12; waiting > 0; {
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				waiting--
			case <-time.After(10 * time.Millisecond):
				if err := watch.Run(context.Background(), []*ratelimit.Statement{s}); err != nil || s.Err != nil {
					t.Fatal(err, s.Err)
				}
			}
		}
		if open != want {
			t.Errorf("MaxConns %d: %d connections", most, open)
		}
		db.Close()
		watch.Close()
	}
}

// TestBadArgument: what cannot be sent is an error, and the connection is as good
// as before.
func TestBadArgument(t *testing.T) {
	db := open(t, cluster.Open(t))
	defer db.Close()
	good := &ratelimit.Statement{SQL: "SELECT $1::bigint", Args: []any{int64(1)}}
	for _, argument := range []any{1, 1.5, true, []byte("x"), []any{}, time.Now()} {
		bad := &ratelimit.Statement{SQL: "SELECT $1::text", Args: []any{argument}}
		err := db.Run(context.Background(), []*ratelimit.Statement{good, bad})
		if err == nil || bad.Err == nil || !strings.Contains(bad.Err.Error(), "an argument of type") {
			t.Errorf("%T: %v, %v", argument, err, bad.Err)
		}
		if err := db.Run(context.Background(), []*ratelimit.Statement{good}); err != nil || good.Err != nil {
			t.Errorf("after a %T: %v, %v", argument, err, good.Err)
		}
	}
}

// TestEmptyText: a text without characters is not NULL, even where nothing was
// encoded before it.
func TestEmptyText(t *testing.T) {
	db := open(t, cluster.Open(t))
	defer db.Close()
	for range 50 { // with the race detector on, memory for it is often fresh
		null := true
		s := &ratelimit.Statement{SQL: "SELECT $1::text", Args: []any{""}, Row: func(columns [][]byte) error { null = columns[0] == nil; return nil }}
		if err := db.Run(context.Background(), []*ratelimit.Statement{s}); err != nil || s.Err != nil || null {
			t.Fatalf("%v, %v, NULL %v", err, s.Err, null)
		}
	}
}

// TestStatementOfAnotherSession: where the server knows a statement of ours that
// we do not remember, as behind a pooler, all goes on without names.
func TestStatementOfAnotherSession(t *testing.T) {
	dsn := cluster.Open(t)
	db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	run := func(sql string) {
		t.Helper()
		s := &ratelimit.Statement{SQL: sql}
		if err := db.Run(context.Background(), []*ratelimit.Statement{s}); err != nil || s.Err != nil || s.Code != "" {
			t.Fatalf("%s: %v, %v", sql, err, s.Err)
		}
	}
	run("SELECT 1")
	// Its name is made from the text, so it is known before it is prepared.
	name := ""
	s := &ratelimit.Statement{SQL: "SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT 1'", Row: func(columns [][]byte) error {
		name = string(columns[0])
		return nil
	}}
	if err := db.Run(context.Background(), []*ratelimit.Statement{s}); err != nil || s.Err != nil || name == "" {
		t.Fatal(err, s.Err, name)
	}
	other, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Exec(context.Background(), "PREPARE "+name+" AS SELECT 1"); err != nil {
		t.Fatal(err)
	}
	db = other
	run("SELECT 1")
	run("SELECT 1")
	run("SELECT 2")
}
