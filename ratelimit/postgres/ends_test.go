package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestPanicEndsAllCalls: the decision on one hit panics, as with a limit that is not valid.
// The calls of its batch that were decided before are finished, too.
func TestPanicEndsAllCalls(t *testing.T) {
	answer := func(ctx context.Context, statements []*postgres.Statement) error {
		for _, s := range statements {
			row := grantedRow(1, 1, 1)
			if strings.Contains(s.SQL, "tokens") {
				row = [][]byte{int8(1), int8(0), fakeNow, int8(0), fakeNow}
			}
			addRow(s, row)
		}
		return nil
	}
	invalid := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "q", Algorithm: ratelimit.TokenBucket, Events: 1}, Key: "k", Cost: 1, Peek: true}
	calls := []*batch.Call{callFor(false, fakeHits("a")...), callFor(false, invalid)}
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, &fakeDB{answer: answer}, without)
		store.DecideBatch(calls)
		store.Close()
	})
	for _, c := range calls {
		done := make(chan struct{})
		go func() {
			batch.Wait(c)
			close(done)
		}()
		select {
		case <-done:
			if !strings.Contains(fmt.Sprint(c.Err), "panic") {
				t.Errorf("%v, %+v", c.Err, c.Decisions)
			}
		case <-time.After(5 * time.Second):
			t.Error("a call is never finished")
		}
	}
}

// TestTransactionThatIsAlwaysShort ends: at its deadline, or when it has been tried often.
func TestTransactionThatIsAlwaysShort(t *testing.T) {
	for name, pause := range map[string]time.Duration{"a fast database": 0, "a slow database": 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{answer: func(ctx context.Context, statements []*postgres.Statement) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(pause):
					return short(ctx, statements)
				}
			}}
			store := newStore(t, db, without)
			began := time.Now()
			done := make(chan error)
			for range 3 {
				go func() {
					done <- store.Take(context.Background(), 2*time.Second, fakeHits("a", "b"), make([]ratelimit.Decision, 2))
				}()
			}
			for range 3 {
				if err := <-done; !errors.Is(err, ratelimit.ErrTimeout) || time.Since(began) > 2*time.Second {
					t.Errorf("%s: %v after %v", name, err, time.Since(began))
				}
			}
			if runs, _ := db.count(); runs > 310 {
				t.Errorf("%s: %d round trips", name, runs)
			}
			store.Close()
		})
	}
}

// TestCancelledCallers end their contexts while their batch is in flight, and at its very
// end. Each gets its own error and keeps its decisions, or gets a decision.
func TestCancelledCallers(t *testing.T) {
	db := &fakeDB{}
	store := newStore(t, db, postgres.Options{CleanupProbability: -1})
	for i := range 300 {
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := fmt.Errorf("cancelled %d", i)
		db.set(func(c context.Context, statements []*postgres.Statement) error {
			cancel(cause)
			if i%3 == 0 {
				time.Sleep(time.Millisecond)
			}
			return admit(c, statements)
		}, nil)
		d := []ratelimit.Decision{{Limit: 77}}
		err := store.Take(ctx, 10*time.Second, fakeHits("a"), d)
		switch {
		case err == nil && (!d[0].Allowed || d[0].Limit != 5):
			t.Fatalf("no error, and the decision %+v", d[0])
		case err != nil && (!errors.Is(err, cause) || d[0].Limit != 77):
			t.Fatalf("%v, and the decision %+v", err, d[0])
		}
	}
}

// TestCloseWaitsForCalls: Close lets calls in flight finish, but not for longer than a second.
func TestCloseWaitsForCalls(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{}
			db.answer = func(ctx context.Context, statements []*postgres.Statement) error {
				if hangs {
					return hang(ctx, statements)
				}
				time.Sleep(200 * time.Millisecond)
				db.mu.Lock()
				defer db.mu.Unlock()
				if db.closed {
					t.Error("the DB was closed during a call")
				}
				return admit(ctx, statements)
			}
			store := newStore(t, db, postgres.Options{CleanupProbability: -1})
			done := make(chan error)
			go func() { _, _, err := tryOne(store, 10*time.Second, fakeHits("a")[0]); done <- err }()
			synctest.Wait()
			started := time.Now()
			store.Close()
			if took := time.Since(started); hangs != (took >= time.Second) || took > 2*time.Second {
				t.Errorf("hangs %v: Close took %v", hangs, took)
			}
			if err := <-done; (err != nil) != hangs {
				t.Errorf("hangs %v: %v", hangs, err)
			}
			if _, _, err := tryOne(store, time.Second, fakeHits("a")[0]); !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}
