package conformance_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The suites run over the other implementations in those packages' own tests.

func openPgwire(t testing.TB, dsn string) ratelimit.DB {
	db, err := pgwire.Open(dsn, pgwire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestPostgresOverPgwire(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store {
		return ratelimit.NewPostgres(openPgwire(t, cluster.Open(t)), ratelimit.PostgresOptions{Report: func(err error) { t.Error(err) }})
	})
}

func TestPgwire(t *testing.T) { conformance.DB(t, openPgwire) }
