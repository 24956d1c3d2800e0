package conformance_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

func openPgwire(t testing.TB, dsn string) pgdb.DB {
	db, err := pgwire.Open(dsn, pgwire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// The driver pgwire passes the tests of a DB. The packages of the other implementations run the suites in
// their own tests.
func TestPgwirePassesConformance(t *testing.T) { conformance.DB(t, openPgwire) }
