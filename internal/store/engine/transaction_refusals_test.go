package engine_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// At most one in a hundred refusals by the database writes an error into the server's log, and the error
// explains that it is normal. A single client causes no error, even if only some of its requests pass. Of
// many concurrent clients, each new key may cause one error.
func TestFewRefusalsReachServerLog(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	var mu sync.Mutex  // guards lines
	var lines []string // the errors of statements: each is a line in the server's log
	db := fakedb.Between(drivers.All["pgwire"](t, s.dsn),
		func(statements []*pgdb.Statement, send fakedb.Send) error {
			err := send(statements)
			mu.Lock()
			defer mu.Unlock()
			for _, s := range statements {
				if s.Code != "" {
					lines = append(lines, s.Code+" "+s.Err.Error())
				}
			}
			return err
		})
	store := s.openEngineOn(db,
		engine.Options{DisableMigration: true, CleanupProbability: -1, DisableRememberedRefusals: true})
	refused := int64(0)
	for _, l := range conformance.Limits("", 3) {
		closed, open := *l, *l
		open.Prefix, open.Events, open.Burst = "open "+l.Prefix, 1000, 0
		for i := range 50 {
			key := fmt.Sprint("k", i/25)
			shared := ratelimit.Hit{Limit: &open, Key: "all", Cost: 1}
			if !takeAll(t, store, shared, ratelimit.Hit{Limit: &closed, Key: key, Cost: 1}) {
				refused++
			}
			takeAll(t, store, shared, ratelimit.Hit{Limit: &open, Key: "other", Cost: 1})
		}
	}
	if len(lines) > 0 || refused < 100 {
		t.Errorf("%d sequential refusals, %d errors in the log, want at least 100 and 0: %q", refused,
			len(lines), lines)
	}
	n := refuseConcurrently(t, store)
	if int64(len(lines))*100 > n {
		t.Errorf("the log has %d of %d concurrent refusals, want at most 1 %%", len(lines), n)
	}
	const want = "pg_ratelimit fails this transaction on purpose, which is normal: a limit is used up"
	for _, line := range lines {
		if !strings.HasPrefix(line, "22P02") || !strings.Contains(line, want) {
			t.Errorf("the log has %q, want 22P02 and %q", line, want)
		}
	}
}

// refuseConcurrently exhausts limits with many clients, and returns the number of refused requests.
func refuseConcurrently(t *testing.T, store ratelimit.Store) int64 {
	var refused atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := range 400 {
				h := hitOn("few", 20, false)
				h.Key = fmt.Sprint("k", i%8)
				if !takeAll(t, store, h, hitOn("open", 1000, true)) {
					refused.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return refused.Load()
}
