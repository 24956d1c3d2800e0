package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestStatementsComeInOneOrder: whatever order the hits of a request come in, its statements come in the same
// order, so that no two processes lock the rows of one limit and wait for those of another.
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
