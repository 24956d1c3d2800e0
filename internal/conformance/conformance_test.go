package conformance_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

func openPgx(t testing.TB, dsn string) ratelimit.DB {
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openPgwire(t testing.TB, dsn string) ratelimit.DB {
	db, err := pgwire.Open(dsn, pgwire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// onPostgres opens stores on a database of their own.
func onPostgres(open func(t testing.TB, dsn string) ratelimit.DB) func(t testing.TB) ratelimit.Store {
	return func(t testing.TB) ratelimit.Store {
		return ratelimit.NewPostgres(open(t, cluster.Open(t)), ratelimit.PostgresOptions{Report: func(err error) { t.Error(err) }})
	}
}

func TestMemory(t *testing.T) {
	conformance.Store(t, func(testing.TB) ratelimit.Store { return ratelimit.NewMemory(0, nil) })
}

func TestPostgresOverPgx(t *testing.T) { conformance.Store(t, onPostgres(openPgx)) }

func TestPostgresOverPgwire(t *testing.T) { conformance.Store(t, onPostgres(openPgwire)) }

func TestPgx(t *testing.T) { conformance.DB(t, openPgx) }

func TestPgwire(t *testing.T) { conformance.DB(t, openPgwire) }
