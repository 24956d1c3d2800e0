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

// TestRowsOfAnOpenTransaction: another transaction has locked a row, or has inserted one, and is open. Once
// the store has found that, requests on the row fail at once, and other rows are decided. When the
// transaction ends, the row is decided, too.
func TestRowsOfAnOpenTransaction(t *testing.T) {
	for name, test := range map[string]struct{ key, sql string }{
		"locked": {"old", "SELECT FROM rate_limit_ephemeral WHERE key = 'old' FOR UPDATE"},
		"inserted": {"young",
			"INSERT INTO rate_limit_ephemeral SELECT (jsonb_populate_record(r, '{\"key\": " +
				"\"young\"}')).* FROM rate_limit_ephemeral r WHERE key = 'old'"},
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
			for range 6 { // their batches have both rows
				group.Go(func() {
					for range 3 {
						if _, _, err := tryOne(store, 150*time.Millisecond, hit(test.key)); !errors.Is(err,
							ratelimit.ErrTimeout) {
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
