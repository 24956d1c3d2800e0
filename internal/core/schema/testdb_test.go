package schema_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// testDB is the database of a test, with a connection to it.
type testDB struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn
}

// openTestDB makes a database and runs sql in it.
func openTestDB(t testing.TB, sql ...string) *testDB {
	t.Helper()
	return connectDB(t, cluster.Open(t, sql...))
}

// connectDB opens a connection to a database.
func connectDB(t testing.TB, dsn string) *testDB {
	t.Helper()
	return &testDB{t: t, dsn: dsn, conn: cluster.Connect(t, dsn)}
}

// newTestDB makes a database with all tables, two tiers and two users with a key each.
func newTestDB(t testing.TB) *testDB {
	t.Helper()
	s := openTestDB(t, schema.File)
	s.exec(`INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2);
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'pro');
		INSERT INTO rate_limit_api_keys (digest, user_id)
			VALUES (sha256('ann'), 'ann'), (sha256('bob'), 'bob')`)
	return s
}

// openDB opens a DB for a role, or for the owner of the database if that is "".
func (s *testDB) openDB(role string) pgdb.DB {
	s.t.Helper()
	dsn := s.dsn
	if role != "" {
		dsn += "&options=-c%20role%3D" + role
	}
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(db.Close)
	return db
}

// try runs commands, and returns the first error.
func (s *testDB) try(sql string) error {
	_, err := s.conn.PgConn().Exec(context.Background(), sql).ReadAll()
	return err
}

func (s *testDB) exec(sql string) {
	s.t.Helper()
	if err := s.try(sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// queryText returns the rows of a query as rowsOf formats them.
func (s *testDB) queryText(sql string) string {
	s.t.Helper()
	results, err := s.conn.PgConn().Exec(context.Background(), sql).ReadAll()
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return rowsOf(results[len(results)-1])
}

// expectError runs a command that must fail, and returns the server's error.
func (s *testDB) expectError(sql string) *pgconn.PgError {
	s.t.Helper()
	err := s.try(sql)
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		s.t.Fatalf("%s: %v, want an error of the server", sql, err)
	}
	return failure
}

// expect fails the test unless a query returns the text want.
func (s *testDB) expect(sql, want string) {
	s.t.Helper()
	if got := s.queryText(sql); got != want {
		s.t.Errorf("%s: got\n%s\nwant\n%s", sql, got, want)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
