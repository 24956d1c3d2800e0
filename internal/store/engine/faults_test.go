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

// TestRowsOfAnOpenTransaction: another transaction has locked a row, or has inserted one, and is open. Once that is known,
// requests on the row fail at once, and other rows are decided. When the transaction ends, the row is decided, too.
func TestRowsOfAnOpenTransaction(t *testing.T) {
	for name, test := range map[string]struct{ key, sql string }{
		"locked":   {"old", "SELECT FROM rate_limit_ephemeral WHERE key = 'old' FOR UPDATE"},
		"inserted": {"young", "INSERT INTO rate_limit_ephemeral SELECT (jsonb_populate_record(r, '{\"key\": \"young\"}')).* FROM rate_limit_ephemeral r WHERE key = 'old'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			store := s.store(without)
			hit := func(key string) ratelimit.Hit {
				h := hitOn("p", 1000, false)
				h.Key = key
				return h
			}
			takeOne(t, store, hit("old"))
			s.exec("BEGIN; " + test.sql)
			var group sync.WaitGroup
			for range 6 { // whose batches have both rows
				group.Go(func() {
					for range 3 {
						if _, _, err := tryOne(store, 150*time.Millisecond, hit(test.key)); !errors.Is(err, ratelimit.ErrTimeout) {
							t.Errorf("of the row of the transaction: %v", err)
						}
					}
				})
				group.Go(func() {
					for i := range 10 {
						if _, _, err := tryOne(store, longTime, hit(fmt.Sprint("free", i))); err != nil {
							t.Errorf("of another row: %v", err)
						}
					}
				})
			}
			const limit = 2 * time.Second
			await.Within(t, longTime, "a request on the row to fail long before its timeout", func() bool {
				_, took, err := tryOne(store, limit, hit(test.key))
				if !errors.Is(err, ratelimit.ErrTimeout) {
					t.Errorf("while the transaction is open: %v", err)
				}
				return took < limit/2
			})
			group.Wait()
			takeOne(t, store, hit("free"))
			s.exec("COMMIT")
			await.Within(t, longTime, "the row to be decided", func() bool {
				_, _, err := tryOne(store, limit, hit(test.key))
				return err == nil
			})
		})
	}
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
					err := store.Take(context.Background(), longTime, hits, make([]ratelimit.Decision, 2))
					if errors.Is(err, ratelimit.ErrClosed) {
						return
					}
					if err != nil && !strings.Contains(err.Error(), "closed") && !errors.Is(err, ratelimit.ErrUnavailable) {
						t.Errorf("at the store's end: %v", err)
					}
				}
			}()
		}
		await.Within(t, longTime, "calls under way", func() bool { return store.Stats().Requests > 32 })
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
	await.Within(t, longTime, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before+2 })
}
