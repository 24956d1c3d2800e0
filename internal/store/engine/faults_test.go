package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// An open transaction of another session has locked or inserted a row. Requests on other rows are decided
// meanwhile. Requests on the row fail: first at their timeout, and at once when the store has detected the
// lock. After the end of the transaction, requests on the row are decided again.
func TestLockedRowDelaysNoOtherRow(t *testing.T) {
	for name, test := range map[string]struct{ key, sql string }{
		"locked": {"old", "SELECT FROM rate_limit_ephemeral WHERE key = 'old' FOR UPDATE"},
		"inserted": {"young",
			"INSERT INTO rate_limit_ephemeral SELECT (jsonb_populate_record(r, '{\"key\": " +
				"\"young\"}')).* FROM rate_limit_ephemeral r WHERE key = 'old'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestDB(t)
			store := s.openEngine(bareOptions)
			hit := func(key string) ratelimit.Hit {
				h := hitOn("p", 1000, false)
				h.Key = key
				return h
			}
			takeOne(t, store, hit("old"))
			s.exec("BEGIN; " + test.sql)
			var group sync.WaitGroup
			for range 6 { // so that a batch has the locked row and free rows
				group.Go(func() {
					for range 3 {
						_, _, err := tryOne(store, 150*time.Millisecond, hit(test.key))
						if !errors.Is(err, ratelimit.ErrTimeout) {
							t.Errorf("hit on the locked row: error %v, want ErrTimeout", err)
						}
					}
				})
				group.Go(func() {
					for i := range 10 {
						if _, _, err := tryOne(store, testTimeout, hit(fmt.Sprint("free", i))); err != nil {
							t.Errorf("hit on another row: error %v, want none", err)
						}
					}
				})
			}
			const limit = 2 * time.Second
			await.Within(t, testTimeout, "a request on the row to fail long before its timeout", func() bool {
				_, took, err := tryOne(store, limit, hit(test.key))
				if !errors.Is(err, ratelimit.ErrTimeout) {
					t.Errorf("while the transaction is open: error %v, want ErrTimeout", err)
				}
				return took < limit/2
			})
			group.Wait()
			takeOne(t, store, hit("free"))
			s.exec("COMMIT")
			await.Within(t, testTimeout, "the row to be decided", func() bool {
				_, _, err := tryOne(store, limit, hit(test.key))
				return err == nil
			})
		})
	}
}
