package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestLockedRow: another session has locked a row. Requests on this row fail, and no others. Once the row is free,
// its requests are decided.
func TestLockedRow(t *testing.T) {
	s := newSite(t)
	store := s.store(without)
	hit := func(key string) ratelimit.Hit {
		h := hitOn("p", 1000, false)
		h.Key = key
		return h
	}
	takeOne(t, store, hit("locked"))
	s.exec("BEGIN; SELECT FROM rate_limit_ephemeral WHERE key = 'locked' FOR UPDATE")
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			for range 3 {
				if _, _, err := tryOne(store, 150*time.Millisecond, hit("locked")); !errors.Is(err, ratelimit.ErrTimeout) {
					t.Errorf("of the locked row: %v", err)
				}
			}
		})
		group.Go(func() {
			for i := range 10 {
				takeOne(t, store, hit(fmt.Sprint("free", i)))
			}
		})
	}
	group.Wait()
	s.exec("COMMIT")
	await.Within(t, 20*time.Second, "the row to be decided", func() bool {
		_, _, err := tryOne(store, 5*time.Second, hit("locked"))
		return err == nil
	})
}

// TestInsertedRow: another transaction has inserted a row and is open. Once that is known,
// requests on the row fail at once, and other rows are decided. When the transaction ends, the
// row is decided, too.
func TestInsertedRow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	store := s.store(without)
	hit := func(key string) ratelimit.Hit {
		return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}, Key: key, Cost: 1}
	}
	takeOne(t, store, hit("free"))
	s.exec("BEGIN; INSERT INTO rate_limit_ephemeral SELECT (jsonb_populate_record(r, '{\"key\": \"young\"}')).* FROM rate_limit_ephemeral r")
	const limit = 2 * time.Second
	await.Within(t, 20*time.Second, "a request on the row to fail long before its timeout", func() bool {
		_, took, err := tryOne(store, limit, hit("young"))
		if !errors.Is(err, ratelimit.ErrTimeout) {
			t.Errorf("while the transaction is open: %v", err)
		}
		return took < limit/2
	})
	takeOne(t, store, hit("free"))
	s.exec("COMMIT")
	await.Within(t, 20*time.Second, "the row to be decided", func() bool {
		_, _, err := tryOne(store, limit, hit("young"))
		return err == nil
	})
}

// TestCloseDuringCalls: all calls return, with a decision or an error.
func TestCloseDuringCalls(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newSite(t)
	for range 2 {
		store := s.store(engine.Options{CleanupProbability: 1})
		var group sync.WaitGroup
		for i := range 16 {
			group.Add(1)
			go func() {
				defer group.Done()
				for {
					hits := append(fakeHits(fmt.Sprint(i)), ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "q", Events: 3, Window: time.Hour}, Key: "q", Cost: 1})
					err := store.Take(context.Background(), 2*time.Second, hits, make([]ratelimit.Decision, 2))
					if errors.Is(err, ratelimit.ErrClosed) {
						return
					}
					if err != nil && !strings.Contains(err.Error(), "closed") && !errors.Is(err, ratelimit.ErrUnavailable) {
						t.Errorf("at the store's end: %v", err)
					}
				}
			}()
		}
		await.Within(t, 20*time.Second, "calls under way", func() bool { return store.Stats().Requests > 32 })
		closed := make(chan struct{})
		go func() {
			store.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(20 * time.Second):
			t.Fatal("Close does not return")
		}
		group.Wait()
	}
	s.nothingReported()
	goroutines(t, before)
}

// goroutines waits until no more are left than before, plus those of a test's
// own connection.
func goroutines(t *testing.T, before int) {
	t.Helper()
	await.Within(t, 20*time.Second, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before+2 })
}
