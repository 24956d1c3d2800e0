package postgres_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// open returns a store over pgx that the test closes.
func open(t testing.TB, dsn string) *postgres.Store {
	t.Helper()
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(
		db, postgres.Options{CleanupProbability: -1, OnError: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// A store on Postgres passes the conformance suite of stores.
func TestPostgresPassesConformance(t *testing.T) {
	dsn := cluster.Open(t)
	conformance.Store(t, func(t testing.TB) ratelimit.Store { return open(t, dsn) })
}

// Stats counts requests and remembered refusals.
func TestStatsCountRequests(t *testing.T) {
	store := open(t, cluster.Open(t))
	store.Prepare()
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Minute},
		Key: "k", Cost: 5}}
	decisions := make([]ratelimit.Decision, 1)
	for range 2 {
		if err := store.Take(t.Context(), 10*time.Second, hits, decisions); err != nil {
			t.Fatal(err)
		}
	}
	if decisions[0].Allowed {
		t.Errorf("the second request: %+v, want a refusal", decisions[0])
	}
	if s := store.Stats(); s.Requests != 2 || s.RememberedRefusals != 1 {
		t.Errorf("Stats() = %+v, want 2 requests and 1 remembered refusal", s)
	}
	if err := store.Unavailable(); err != nil {
		t.Errorf("Unavailable() = %v, want nil", err)
	}
}
