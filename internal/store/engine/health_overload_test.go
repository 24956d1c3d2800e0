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

// While the database answers each batch in time, requests wait up to four timeouts for earlier batches, and
// then fail with ErrOverloaded. A batch that takes longer than a timeout means an outage: it fails, and the
// requests behind it fail as well.
func TestSlowBatchesAreOverload(t *testing.T) {
	const timeout = 250 * time.Millisecond
	for _, test := range []struct {
		batch   time.Duration // the time of a batch
		count   int           // the number of requests, each in its own batch
		decided int           // the first requests, which are decided
		want    error         // of the others
		within  time.Duration // the time until the others fail
	}{
		{batch: 200 * time.Millisecond, count: 4, decided: 4},
		{batch: 200 * time.Millisecond, count: 8, decided: 4, want: ratelimit.ErrOverloaded,
			within: 4 * timeout},
		{batch: time.Second, count: 8, want: ratelimit.ErrTimeout, within: timeout},
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
			store := newEngine(t, fewConnsDB{&fakeDB{answer: answer, probe: answer}, 1}, bareOptions)
			if _, _, err := tryOne(store, time.Minute, fakeHits("first")[0]); err != nil {
				t.Fatal(err)
			}
			var group sync.WaitGroup
			for n := range test.count {
				group.Go(func() {
					hits := make([]ratelimit.Hit, 4001) // more than fit into a batch
					for i := range hits {
						hits[i] = fakeHits(fmt.Sprint(n))[0]
					}
					start := time.Now()
					err := store.Take(t.Context(), timeout, hits,
						make([]ratelimit.Decision, len(hits)))
					took := time.Since(start)
					if n < test.decided && (err != nil || took != time.Duration(n+1)*test.batch) ||
						n >= test.decided && (!errors.Is(err, test.want) || took > test.within) {
						t.Errorf("%v: request %d: error %v after %v", test, n, err, took)
					}
				})
				synctest.Wait()
			}
			group.Wait()
			store.Close()
		})
	}
}

// While other batches use all connections, a batch waits up to four timeouts for a connection.
func TestBusyPoolIsOverload(t *testing.T) {
	const timeout = 250 * time.Millisecond
	for _, free := range []time.Duration{600 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				select {
				case <-time.After(time.Until(start.Add(free))):
					return admit(ctx, statements)
				case <-ctx.Done():
					return pg.ErrBusy
				}
			}
			store := newEngine(t, &fakeDB{answer: answer, probe: answer}, bareOptions)
			defer store.Close()
			_, took, err := tryOne(store, timeout, fakeHits("a")[0])
			want := error(nil)
			if free > 4*timeout {
				want = ratelimit.ErrOverloaded
			}
			if !errors.Is(err, want) || took != min(free, 4*timeout) {
				t.Errorf("a connection is free after %v: error %v after %v, want %v", free, err, took, want)
			}
		})
	}
}

// fewConnsDB is a DB with a bound on its connections.
type fewConnsDB struct {
	pgdb.DB
	n int
}

func (d fewConnsDB) MaxConns() int { return d.n }
