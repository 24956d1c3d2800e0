package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Close waits at most a second for calls in flight.
func TestCloseWaitsForCalls(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{}
			db.answer = func(ctx context.Context, statements []*pgdb.Statement) error {
				if hangs {
					return hang(ctx, statements)
				}
				time.Sleep(200 * time.Millisecond)
				db.mu.Lock()
				defer db.mu.Unlock()
				if db.closed {
					t.Error("the DB was closed during a call, want it closed after the call")
				}
				return admit(ctx, statements)
			}
			store := newEngine(t, db, engine.Options{CleanupProbability: -1})
			done := make(chan error)
			go func() { _, _, err := tryOne(store, 10*time.Second, fakeHits("a")[0]); done <- err }()
			synctest.Wait()
			start := time.Now()
			store.Close()
			if took := time.Since(start); hangs != (took >= time.Second) || took > 2*time.Second {
				t.Errorf("hangs %v: Close took %v, want at most a second more than the call", hangs, took)
			}
			if err := <-done; (err != nil) != hangs {
				t.Errorf("hangs %v: the call ended with error %v, want one: %v", hangs, err, hangs)
			}
			_, _, err := tryOne(store, time.Second, fakeHits("a")[0])
			if !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("after Close: error %v, want ErrClosed", err)
			}
		})
	}
}
