package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestLockOrder: whatever order hits come in, a statement locks their rows in the
// order of prefix and key, so that no two can wait for each other. A statement
// that waits for row b has row a already.
func TestLockOrder(t *testing.T) {
	store, conn := openPostgres(t, ratelimit.PostgresOptions{CleanupProbability: -1})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l := &ratelimit.Limit{Prefix: "p", Events: 10, Window: time.Hour}
	hits := []ratelimit.Hit{{Limit: l, Key: "b", Cost: 1}, {Limit: l, Key: "a", Cost: 1}}
	if err := store.Take(ctx, 10*time.Second, hits, make([]ratelimit.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	other, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(ctx) }()
	if _, err := other.Exec(ctx, "SELECT FROM rate_limit_ephemeral WHERE key = 'b' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() { taken <- store.Take(ctx, 20*time.Second, hits, make([]ratelimit.Decision, 2)) }()
	for waiting := false; !waiting; {
		if err := other.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	free := 0
	if err := other.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM rate_limit_ephemeral WHERE key = 'a' FOR UPDATE SKIP LOCKED) a").Scan(&free); err != nil {
		t.Fatal(err)
	}
	if free != 0 {
		t.Error("a statement waits for row b, and has not locked row a before")
	}
	if err := other.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}
