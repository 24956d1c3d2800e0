package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// open returns a store over pgx that the test closes.
func open(t testing.TB) *postgres.Store {
	t.Helper()
	db, err := pgxdb.Open(cluster.Open(t), pgxdb.Options{})
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

func TestPostgres(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store { return open(t) })
}

// TestStatsCountRequests: a program sees what its store has done.
func TestStatsCountRequests(t *testing.T) {
	store := open(t)
	store.Prepare()
	h := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Minute},
		Key: "k", Cost: 5}
	decisions := make([]ratelimit.Decision, 1)
	for range 2 {
		if err := store.Take(t.Context(), 10*time.Second, []ratelimit.Hit{h}, decisions); err != nil {
			t.Fatal(err)
		}
	}
	if s := store.Stats(); decisions[0].Allowed || s.Requests != 2 || s.BlockedKeys != 1 ||
		store.Unavailable() != nil {
		t.Errorf("after a request and a refusal: %+v, %v", s, store.Unavailable())
	}
	store.Close()
	if err := store.Take(context.Background(), time.Second, []ratelimit.Hit{h}, decisions); !errors.Is(err,
		ratelimit.ErrClosed) {
		t.Errorf("a closed store says %v", err)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	var field *ratelimit.FieldError
	if _, err := postgres.New(nil, postgres.Options{}); !errors.As(err, &field) || field.Field != "db" {
		t.Errorf("without a DB: %v", err)
	}
}
