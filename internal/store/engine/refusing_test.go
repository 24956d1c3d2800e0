package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestFewRefusalsAreInTheLogOfTheServer: of the refusals that reach the database, at most one in a hundred
// leaves an error in the server's log, which says that it is normal: with one client that is refused among
// others that pass, and with many at once. Each new key may leave one, if requests come at the same time.
func TestFewRefusalsAreInTheLogOfTheServer(t *testing.T) {
	for _, driver := range []string{"pgxdb", "pgwire"} {
		s := newSite(t)
		s.exec(engine.TableSQL)
		var mu sync.Mutex  // guards lines
		var lines []string // the errors of statements: the server's log has a line for each
		db := &between{drivers.All[driver](t, s.dsn),
			func(ctx context.Context, statements []*pgdb.Statement, send answerFunc) error {
				err := send(ctx, statements)
				mu.Lock()
				defer mu.Unlock()
				for _, s := range statements {
					if s.Code != "" {
						lines = append(lines, s.Code+" "+s.Err.Error())
					}
				}
				return err
			}}
		store := s.storeOn(db,
			engine.Options{DisableMigration: true, CleanupProbability: -1, NoRefusals: true})
		refused := int64(0)
		for _, l := range conformance.Limits("", 3) {
			closed, open := *l, *l
			open.Prefix, open.Events, open.Burst = "open "+l.Prefix, 1000, 0
			for i := range 50 {
				key := fmt.Sprint("k", i/25)
				if !passes(t, store, ratelimit.Hit{Limit: &open, Key: "all", Cost: 1},
					ratelimit.Hit{Limit: &closed, Key: key, Cost: 1}) {
					refused++
				}
				passes(t, store, ratelimit.Hit{Limit: &open, Key: "all", Cost: 1},
					ratelimit.Hit{Limit: &open, Key: "other", Cost: 1})
			}
		}
		if len(lines) > 0 || refused < 100 {
			t.Errorf("%s: of %d refusals one after the other, %d are in the log: %q", driver, refused,
				len(lines), lines)
		}
		n := refuseAtOnce(t, store)
		if int64(len(lines))*100 > n {
			t.Errorf("%s: of %d refusals, %d are in the log", driver, n, len(lines))
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, "22P02") ||
				!strings.Contains(line,
					"pg_ratelimit fails this transaction on purpose, which is normal: a limit is used up") {
				t.Errorf("%s: the log has %q", driver, line)
			}
		}
		t.Logf("%s: of %d refusals one after the other none, and of %d at once %d are in the log", driver,
			refused, n, len(lines))
	}
}

// refuseAtOnce has many clients use up limits, and returns how many requests were refused.
func refuseAtOnce(t *testing.T, store ratelimit.Store) int64 {
	var refused atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := range 400 {
				h := hitOn("few", 20, false)
				h.Key = fmt.Sprint("k", i%8)
				if !passes(t, store, h, hitOn("open", 1000, true)) {
					refused.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return refused.Load()
}
