package schema_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// site is a database and a connection to it.
type site struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn
}

// open makes a database in which the SQL has run.
func open(t testing.TB, sql ...string) *site {
	t.Helper()
	s := &site{t: t, dsn: cluster.Open(t, sql...)}
	s.conn = cluster.Connect(s.t, s.dsn)
	return s
}

// newSite makes a database with all tables, two tiers and two users with a key each.
func newSite(t testing.TB) *site {
	t.Helper()
	s := open(t, schema.File)
	s.exec(`INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2);
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'pro');
		INSERT INTO rate_limit_api_keys (digest, user_id)
			VALUES (sha256('ann'), 'ann'), (sha256('bob'), 'bob')`)
	return s
}

// db opens a DB for a role, or for the owner of the database if that is "".
func (s *site) db(role string) pgdb.DB {
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

// try runs commands.
func (s *site) try(sql string) error {
	_, err := s.conn.PgConn().Exec(context.Background(), sql).ReadAll()
	return err
}

func (s *site) exec(sql string) {
	s.t.Helper()
	if err := s.try(sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// text returns the rows of a query: columns with a space between them, rows with a line break.
func (s *site) text(sql string) string {
	s.t.Helper()
	results, err := s.conn.PgConn().Exec(context.Background(), sql).ReadAll()
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return rowsOf(results[len(results)-1])
}

// fails runs a command that must fail, and returns the server's error.
func (s *site) fails(sql string) *pgconn.PgError {
	s.t.Helper()
	err := s.try(sql)
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		s.t.Fatalf("%s: %v, want an error of the server", sql, err)
	}
	return failure
}

func (s *site) want(sql, want string) {
	s.t.Helper()
	if got := s.text(sql); got != want {
		s.t.Errorf("%s:\n%s\nwant\n%s", sql, got, want)
	}
}

// sorted is a text with its lines in order.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
