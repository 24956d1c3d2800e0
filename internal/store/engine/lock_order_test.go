package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestLockOrder: whatever order hits come in, a statement locks their rows in the
// order of prefix and key, so that no two can wait for each other. A statement
// that waits for row b has row a already.
func TestLockOrder(t *testing.T) {
	s := newSite(t)
	store, conn := s.store(engine.Options{CleanupProbability: -1}), s.conn
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l := &ratelimit.Limit{Prefix: "p", Events: 10, Window: time.Hour}
	hits := []ratelimit.Hit{{Limit: l, Key: "b", Cost: 1}, {Limit: l, Key: "a", Cost: 1}}
	if err := store.Take(ctx, longTime, hits, make([]ratelimit.Decision, 2)); err != nil {
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
	go func() { taken <- store.Take(ctx, longTime, hits, make([]ratelimit.Decision, 2)) }()
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

// TestStatementsComeInOneOrder: whatever order the hits of a request come in, its statements come in the same order,
// so that no two processes lock the rows of one limit and wait for those of another.
func TestStatementsComeInOneOrder(t *testing.T) {
	var hits []ratelimit.Hit
	for _, durable := range []bool{false, true} {
		for _, l := range conformance.Limits("", 9) {
			l.Durable = durable
			hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 1})
		}
	}
	random, first := seed.New(t), ""
	for range 50 {
		order := ""
		db := &fakeDB{answer: func(_ context.Context, statements []*pgdb.Statement) error {
			for _, s := range statements {
				order += s.SQL + "\n"
			}
			return errors.New("this is enough")
		}}
		random.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
		store := newStore(t, db, without)
		store.DecideBatch([]*batch.Call{callFor(false, hits...)})
		if first == "" {
			first = order
		}
		if order != first || strings.Count(order, "rate_limit_durable") == 0 {
			t.Fatalf("the statements come in the order\n%s\nand in the order\n%s", first, order)
		}
		store.Close()
	}
}
