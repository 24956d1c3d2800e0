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

// Close waits at most a second for calls in flight, and then closes the DB. If that fails a call, or a call
// comes later, the call has an error.
func TestCloseWaitsAtMostASecond(t *testing.T) {
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
			took, err := time.Since(start), <-done
			if hangs && (took < time.Second || took > 2*time.Second || err == nil) {
				t.Errorf("a call that hangs: Close took %v, want 1s to 2s; the call had error %v, want one",
					took, err)
			}
			if !hangs && (took >= time.Second || err != nil) {
				t.Errorf("a call of 200ms: Close took %v, want below 1s; the call had error %v, want none",
					took, err)
			}
			_, _, err = tryOne(store, time.Second, fakeHits("a")[0])
			if !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("after Close: error %v, want ErrClosed", err)
			}
		})
	}
}
