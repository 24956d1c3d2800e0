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

// The order of a request's statements does not depend on the order of its hits. Otherwise two processes could
// deadlock on the rows of two limits.
func TestStatementsHaveOneOrder(t *testing.T) {
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
		store := newEngine(t, db, bareOptions)
		store.DecideBatch([]*batch.Call{newCall(false, hits...)})
		if first == "" {
			first = order
		}
		if order != first || strings.Count(order, "rate_limit_durable") == 0 {
			t.Fatalf("the statements have the order\n%s\nwant\n%s", order, first)
		}
		store.Close()
	}
}
