// Package drivers opens databases for tests, over each driver of this module.
package drivers

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// All maps a driver's name to a function that opens a DB. The test closes the DB.
var All = map[string]func(t testing.TB, dsn string) pgdb.DB{
	"pgwire": func(t testing.TB, dsn string) pgdb.DB {
		t.Helper()
		db, err := pgwire.Open(dsn, pgwire.Options{})
		return must(t, db, err)
	},
	"pgxdb": func(t testing.TB, dsn string) pgdb.DB {
		t.Helper()
		db, err := pgxdb.Open(dsn, pgxdb.Options{})
		return must(t, db, err)
	},
}

// Patient returns a DB that gives each call a minute, for a test of what a process writes at its end. A
// process waits at most half a second for that, which may be too short on a busy machine.
func Patient(db pgdb.DB) pgdb.DB { return patient{db} }

type patient struct{ pgdb.DB }

func (p patient) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return p.DB.Run(ctx, max(timeout, time.Minute), statements)
}

// must returns db, and fails the test if err is not nil.
func must(t testing.TB, db pgdb.DB, err error) pgdb.DB {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return db
}
