package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// While the database does not respond, only the first requests wait for their timeouts. If it refuses
// connections from the start, none waits.
func TestFewRequestsWaitForHangingDatabase(t *testing.T) {
	for name, db := range map[string]pgdb.DB{"from the start": fakedb.Silent,
		"later":   &fakeDB{answer: hang, probe: hang},
		"refused": fakedb.Down} {
		synctest.Test(t, func(t *testing.T) {
			const timeout, outage = 250 * time.Millisecond, 2 * time.Minute
			store := newEngine(t, db, engine.Options{CleanupProbability: -1})
			var waited, last atomic.Int64
			var group sync.WaitGroup
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			// Only a server that refuses connections shows an outage by then.
			if _ = store.Await(canceled, timeout); store.Unavailable() != nil && name != "refused" {
				t.Errorf("%s: an outage after a canceled request, want none", name)
			}
			start := time.Now()
			for time.Since(start) < outage {
				group.Go(func() {
					arrived := time.Since(start)
					switch _, took, err := tryOne(store, timeout, fakeHits("k")[0]); {
					case took > timeout:
						t.Errorf("%s: error %v after %v, want it after at most %v", name, err, took, timeout)
					case took > 0:
						waited.Add(1)
						last.Store(max(last.Load(), int64(arrived)))
					case !errors.Is(err, ratelimit.ErrUnavailable):
						t.Errorf("%s: error %v immediately, want ErrUnavailable", name, err)
					}
				})
				time.Sleep(5 * time.Millisecond)
			}
			group.Wait()
			// The first timeout of a request starts the prober, and the first timeout of the prober proves
			// the outage.
			if got := time.Duration(last.Load()); (waited.Load() == 0) != (name == "refused") ||
				got > 600*time.Millisecond {
				t.Errorf("%s: %d requests waited, the last one arrived after %v, want at most 600ms", name,
					waited.Load(), got)
			}
			store.Close()
			time.Sleep(time.Minute) // until a hanging migration has ended
		})
	}
}
