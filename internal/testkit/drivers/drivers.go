// Package drivers opens databases for tests, over each driver of this module.
package drivers

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// All opens a DB that the test closes, by the driver's name.
var All = map[string]func(t testing.TB, dsn string) pgdb.DB{
	"pgwire": func(t testing.TB, dsn string) pgdb.DB {
		t.Helper()
		db, err := pgwire.Open(dsn, pgwire.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return db
	},
	"pgxdb": func(t testing.TB, dsn string) pgdb.DB {
		t.Helper()
		db, err := pgxdb.Open(dsn, pgxdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return db
	},
}
