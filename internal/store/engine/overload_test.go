package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestAWaitIsNoOutage: while the database answers, requests wait for their decisions beyond the timeout, as
// long as the batches of others or a processor that others use make them wait. After four timeouts they are
// overloaded. A statement without an answer is an outage after one timeout, and the requests that wait behind
// it fail then.
func TestAWaitIsNoOutage(t *testing.T) {
	const timeout = 250 * time.Millisecond
	for name, test := range map[string]struct {
		batch time.Duration // how long one takes
		count int           // requests, one a batch
		want  func(n int, took time.Duration, err error) bool
	}{
		"within the timeout": {200 * time.Millisecond, 4, func(n int, took time.Duration, err error) bool {
			return err == nil && took == time.Duration(n+1)*200*time.Millisecond
		}},
		"four timeouts": {200 * time.Millisecond, 8, func(n int, took time.Duration, err error) bool {
			return n < 4 && err == nil ||
				n > 3 && errors.Is(err, ratelimit.ErrOverloaded) && took <= 4*timeout
		}},
		"a long statement": {time.Second, 8, func(_ int, took time.Duration, err error) bool {
			return errors.Is(err, ratelimit.ErrTimeout) && took <= timeout
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				select {
				case <-time.After(test.batch):
					return admit(ctx, statements)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			store := newStore(t, fewConns{&fakeDB{answer: answer, probe: answer}, 1}, without)
			if _, _, err := tryOne(store, time.Minute, fakeHits("first")[0]); err != nil {
				t.Fatal(err)
			}
			var group sync.WaitGroup
			for n := range test.count {
				group.Go(func() {
					hits := make([]ratelimit.Hit, 4001) // more than a batch has
					for i := range hits {
						hits[i] = fakeHits(fmt.Sprint(n))[0]
					}
					began := time.Now()
					err := store.Take(context.Background(), timeout, hits,
						make([]ratelimit.Decision, len(hits)))
					if took := time.Since(began); !test.want(n, took, err) {
						t.Errorf("%s: request %d after %v: %v", name, n, took, err)
					}
				})
				synctest.Wait()
			}
			group.Wait()
			store.Close()
		})
	}
}

// TestAPoolWithoutAFreeConnectionIsNoOutage: a batch waits for a connection while others use all of them.
func TestAPoolWithoutAFreeConnectionIsNoOutage(t *testing.T) {
	const timeout = 250 * time.Millisecond
	for _, free := range []time.Duration{600 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				select {
				case <-time.After(time.Until(began.Add(free))):
					return admit(ctx, statements)
				case <-ctx.Done():
					return fmt.Errorf("%w: %w", pg.ErrNoTurn, ctx.Err())
				}
			}
			store := newStore(t, &fakeDB{answer: answer, probe: answer}, without)
			defer store.Close()
			_, took, err := tryOne(store, timeout, fakeHits("a")[0])
			if free < 4*timeout && (err != nil || took != free) ||
				free > 4*timeout && (!errors.Is(err, ratelimit.ErrOverloaded) || took != 4*timeout) {
				t.Errorf("a connection is free after %v: %v after %v", free, err, took)
			}
		})
	}
}

// fewConns is a DB with a bound on its connections.
type fewConns struct {
	pgdb.DB
	n int
}

func (d fewConns) MaxConns() int { return d.n }
