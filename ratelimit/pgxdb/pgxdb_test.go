package pgxdb_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// open opens a DB without options.
func open(t testing.TB, dsn string) pgdb.DB {
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// A DB that Open returns passes the conformance suite of drivers.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.DB(t, open)
}

// The error for an invalid DSN does not contain the password.
func TestDSNErrorHidesPassword(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:s3cr3t@h:port/d", "postgres://u:s3cr3t@h/d?sslmode=perhaps",
		"nonsense s3cr3t", "postgres://u:s3cr3t@h/d?pool_max_conns=many", "postgres://u:a/b?s3cr3t@h/d",
		"postgres://u:pa@s3cr3t@h/d", "postgres://u:s3cr3t@h/d?sslmode=verify-ca",
		"postgres://u:s3cr3t@h/d?target_session_attrs=some",
	} {
		db, err := pgxdb.Open(dsn, pgxdb.Options{})
		if conformance.FieldOf(err) != "dsn" || db != nil {
			t.Errorf("%s: DB %v, error %v, want a FieldError for dsn", dsn, db, err)
			continue
		}
		if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("error %v, want it without the password", err)
		}
	}
}

// Options.MaxConns bounds the connections. If it is 0, pool_max_conns of the DSN bounds them, and without it
// the bound is 8.
func TestMaxConnsBoundsConnections(t *testing.T) {
	for dsn, want := range map[string]int{"postgres://h/d": 8, "postgres://h/d?pool_max_conns=5": 5} {
		for option, want := range map[int]int{0: want, 3: 3} {
			db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: option})
			if err != nil {
				t.Fatal(err)
			}
			if n := db.MaxConns(); n != want {
				t.Errorf("%s, Options.MaxConns %d: MaxConns() = %d, want %d", dsn, option, n, want)
			}
			db.Close()
		}
	}
}
