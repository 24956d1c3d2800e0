package integration

import (
	"testing"
	"time"

	awaiting "github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// awaitTimeout bounds the time that a test waits for work in the background.
const awaitTimeout = 2 * time.Minute

// These are the functions of package await, as names of this package.
var await, awaitWithin, lateness, pause = awaiting.Until, awaiting.Within, awaiting.Lateness, awaiting.Pause

// openStore returns a store on the database, with at most one postgres.Options. It closes the store at the
// test's end. The test fails if the store reports a failure in the background.
func openStore(t *testing.T, dsn string, options ...postgres.Options) ratelimit.Store {
	t.Helper()
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := append(options, postgres.Options{})[0]
	o.OnError = func(err error) { t.Errorf("the store reports: %v", err) }
	store, err := postgres.New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}
