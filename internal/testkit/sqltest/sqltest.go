// Package sqltest opens databases of Postgres for tests of the SQL, and replays transcripts in them.
package sqltest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// DB is the database of a test, with a connection to it.
type DB struct {
	t    testing.TB
	DSN  string
	Conn *pgx.Conn
}

// Open makes a database and runs sql in it.
func Open(t testing.TB, sql ...string) *DB {
	t.Helper()
	return Connect(t, cluster.Open(t, sql...))
}

// Connect opens a connection to a database.
func Connect(t testing.TB, dsn string) *DB {
	t.Helper()
	return &DB{t: t, DSN: dsn, Conn: cluster.Connect(t, dsn)}
}

// Older makes a database say that it has the functions of an older version, so that a migration makes them
// again.
var Older = Says(`"revision": [0-9]+`, `"revision": 0`)

// Says returns SQL that replaces a part of what rate_limit_about says. pattern is a regular expression.
func Says(pattern, text string) string {
	return "DO $says$ BEGIN EXECUTE regexp_replace(pg_get_functiondef('rate_limit_about'::regproc), '" +
		pattern + "', '" + text + "'); END $says$;\n"
}

// New makes a database with all tables, two tiers and two users with a key each.
func New(t testing.TB) *DB {
	t.Helper()
	s := Open(t, schema.File)
	s.Exec(`INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2);
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'pro');
		INSERT INTO rate_limit_api_keys (digest, user_id)
			VALUES (sha256('ann'), 'ann'), (sha256('bob'), 'bob')`)
	return s
}

// OpenDB opens a pgdb.DB for a role, or for the owner of the database if that is "".
func (s *DB) OpenDB(role string) pgdb.DB {
	s.t.Helper()
	dsn := s.DSN
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

// Try runs commands, and returns the first error.
func (s *DB) Try(sql string) error {
	_, err := s.Conn.PgConn().Exec(context.Background(), sql).ReadAll()
	return err
}

// Exec runs commands that must succeed.
func (s *DB) Exec(sql string) {
	s.t.Helper()
	if err := s.Try(sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// Query returns the rows of a query as rowsOf formats them.
func (s *DB) Query(sql string) string {
	s.t.Helper()
	results, err := s.Conn.PgConn().Exec(context.Background(), sql).ReadAll()
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return rowsOf(results[len(results)-1])
}

// ExpectError runs a command that must fail, and returns the server's error.
func (s *DB) ExpectError(sql string) *pgconn.PgError {
	s.t.Helper()
	err := s.Try(sql)
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		s.t.Fatalf("%s: %v, want an error of the server", sql, err)
	}
	return failure
}

// Expect fails the test unless a query returns the text want.
func (s *DB) Expect(sql, want string) {
	s.t.Helper()
	if got := s.Query(sql); got != want {
		s.t.Errorf("%s: got\n%s\nwant\n%s", sql, got, want)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
