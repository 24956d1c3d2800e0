package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// hangs is a database that does not answer.
func hangs(ctx context.Context, _ []*ratelimit.Statement) error {
	<-ctx.Done()
	return ctx.Err()
}

// after is a database that answers after a while.
func after(d time.Duration) func(context.Context, []*ratelimit.Statement) error {
	return func(ctx context.Context, statements []*ratelimit.Statement) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return honest(ctx, statements)
		}
	}
}

// TestMoreCallersThanABatchHolds: where the queue is never empty, the time of who
// is in it does not run out for those that come after him.
func TestMoreCallersThanABatchHolds(t *testing.T) {
	for _, callers := range []int{300, 1000, 6000, 18_000} { // 18,000 wait for 180 of their 200 ms
		synctest.Test(t, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: after(4 * time.Millisecond)}, ratelimit.PostgresOptions{CleanupProbability: -1, Flights: 1})
			defer store.Close()
			began := time.Now()
			var group sync.WaitGroup
			for i := range callers {
				group.Add(1)
				go func() {
					defer group.Done()
					for time.Since(began) < time.Second {
						if _, took, err := tryOne(store, 200*time.Millisecond, fakeHits(fmt.Sprint(i))[0]); err != nil {
							t.Errorf("%d callers: %v after %v", callers, err, took)
							return
						}
					}
				}()
			}
			group.Wait()
		})
	}
}

// TestAllAreAnsweredInTime: however many wait for a database that hangs; a context
// frees its caller at once, also where the queue may be full.
func TestAllAreAnsweredInTime(t *testing.T) {
	for _, callers := range []int{100, 2500, 40_000} {
		synctest.Test(t, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: hangs}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			var late atomic.Int64
			var group sync.WaitGroup
			for i := range callers {
				group.Add(1)
				go func() {
					defer group.Done()
					_, took, err := tryOne(store, time.Minute, fakeHits(fmt.Sprint(i))[0])
					if took > time.Minute+50*time.Millisecond || !errors.Is(err, ratelimit.ErrTimeout) && !errors.Is(err, ratelimit.ErrUnavailable) {
						if late.Add(1) == 1 {
							t.Errorf("%d callers: %v after %v", callers, err, took)
						}
					}
				}()
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := store.Take(ctx, time.Minute, fakeHits("impatient"), make([]ratelimit.Decision, 1))
			if took := time.Since(began); took != 100*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d callers: a context of 100 ms was answered with %v after %v", callers, err, took)
			}
			group.Wait()
			time.Sleep(2 * time.Minute) // the batch of the impatient may still hang
		})
	}
}

// TestLateComersKeepTheirTime: who comes while the database is slow has the whole
// timeout, though he queued behind others.
func TestLateComersKeepTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := ratelimit.NewPostgres(&fakeDB{answer: after(240 * time.Millisecond)}, ratelimit.PostgresOptions{CleanupProbability: -1, Flights: 1})
		defer store.Close()
		var group sync.WaitGroup
		for range 3 { // each comes shortly before the one before has its answer
			group.Add(1)
			go func() {
				defer group.Done()
				if _, took, err := tryOne(store, 250*time.Millisecond, fakeHits("k")[0]); err != nil {
					t.Errorf("%v after %v", err, took)
				}
			}()
			time.Sleep(236 * time.Millisecond)
		}
		group.Wait()
	})
}

// TestNobodyComesAgainTooLate: a request whose time is almost over is not decided
// again, since what is given back, and who is fresh, share its batch. Nor is one
// that has less time left than the last batch took.
func TestNobodyComesAgainTooLate(t *testing.T) {
	for _, test := range []struct{ timeout, refusal, fresh, next time.Duration }{
		{time.Second, 998 * time.Millisecond, 990 * time.Millisecond, 4 * time.Millisecond},
		{250 * time.Millisecond, 154 * time.Millisecond, 100 * time.Millisecond, 150 * time.Millisecond},
		{time.Second, 100 * time.Millisecond, 90 * time.Millisecond, 4 * time.Millisecond}, // early enough; it still is one request
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			batch := 0
			db := &fakeDB{}
			db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
				batch++
				switch batch {
				case 1:
					return after(4*time.Millisecond)(ctx, statements)
				case 2: // of a and b, and a and c: a has room for one, and b for none
					time.Sleep(test.refusal - time.Since(began))
					return rows(grantedRow(1, 1, 5), grantedRow(2, 0, 5), grantedRow(3, 1, 1))(ctx, statements)
				}
				return after(test.next)(ctx, statements)
			}
			store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, Flights: 1, Report: func(err error) { t.Errorf("reported: %v", err) }})
			defer store.Close()
			var group sync.WaitGroup
			ask := func(keys ...string) {
				group.Add(1)
				go func() {
					defer group.Done()
					asked := time.Now()
					if err := store.Take(context.Background(), test.timeout, fakeHits(keys...), make([]ratelimit.Decision, len(keys))); err != nil {
						t.Errorf("%v: %v after %v", keys, err, time.Since(asked))
					}
				}()
				synctest.Wait()
			}
			ask("w")
			ask("a", "b")
			ask("a", "c")
			time.Sleep(test.fresh)
			ask("fresh")
			group.Wait()
			if n := store.Stats().Requests; n != 4 {
				t.Errorf("%d requests, want 4", n)
			}
		})
	}
}

// TestHalfFilledIn: a fill that panics in the middle of a request leaves nothing
// of it behind.
func TestHalfFilledIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		db := &fakeDB{answer: func(ctx context.Context, statements []*ratelimit.Statement) error {
			<-release
			return honest(ctx, statements)
		}}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, Flights: 1})
		defer store.Close()
		queue := store.NewQueue(time.Minute, func(calls []*ratelimit.Call) {
			for _, c := range calls {
				c.Hits = append(c.Hits, ratelimit.Hit{Cost: 2})
				if c.Owner == "bad" {
					panic("bad request")
				}
				c.Hits[0] = fakeHits(c.Owner.(string))[0]
			}
		}, func([]*ratelimit.Call) {})
		var group sync.WaitGroup
		for _, key := range []string{"first", "a", "bad", "b"} {
			group.Add(1)
			go func() {
				defer group.Done()
				c := ratelimit.NewCall()
				c.Owner = key
				ratelimit.Enter(queue, c)
				if (c.Err != nil) != (key == "bad") {
					t.Errorf("%s: %v", key, c.Err)
				}
			}()
			synctest.Wait()
		}
		close(release)
		group.Wait()
	})
}

// TestManyTimeouts: a program may work out each timeout from a deadline.
func TestManyTimeouts(t *testing.T) {
	store := ratelimit.NewPostgres(&fakeDB{}, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	before := heap()
	for i := range 500 {
		if _, _, err := tryOne(store, time.Second+time.Duration(i), fakeHits("k")[0]); err != nil {
			t.Fatal(err)
		}
	}
	if held := heap() - before; held > 32<<20 {
		t.Errorf("500 timeouts hold %d MB", held>>20)
	}
}
