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
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// While the database fails, all calls fail with ErrUnavailable and the cause. Only the first call sends a
// statement and waits for its result. When the database answers again, the store detects that by probes,
// without a call.
func TestFailingDatabaseGetsOneStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		db := &fakeDB{answer: failWith(broken), probe: failWith(broken)}
		store := newEngine(t, db, engine.Options{CleanupProbability: -1})
		q := newQueueCaller(store, time.Second)
		for start := time.Now(); time.Since(start) < time.Hour; time.Sleep(time.Second) {
			_, took, err := tryOne(store, time.Second, fakeHits("k")[0])
			_, queued := q.take(fakeHits("k")...)
			for _, err := range []error{err, queued,
				store.Reset(t.Context(), time.Second, fakeHits("k"))} {
				if !errors.Is(err, ratelimit.ErrUnavailable) || !errors.Is(err, broken) || took != 0 {
					t.Fatalf("after %v: error %v, want ErrUnavailable and its cause after 0s", took, err)
				}
			}
		}
		runs, probes := db.count()
		if runs != 1 || probes < 3600 || probes > 4*3600 {
			t.Errorf("%d batches and %d probes in an hour, want 1, and 1 to 4 per second", runs, probes)
		}
		db.set(nil, nil)
		time.Sleep(time.Second)
		_, probes = db.count()
		time.Sleep(time.Hour)
		if _, after := db.count(); after != probes {
			t.Errorf("%d probes after the outage, want none", after-probes)
		}
		if _, took, err := tryOne(store, time.Second, fakeHits("k")[0]); err != nil || took != 0 {
			t.Errorf("when the database is back: error %v after %v, want none after 0s", err, took)
		}
		store.Close()
		if _, err := q.take(fakeHits("k")...); !errors.Is(err, ratelimit.ErrClosed) {
			t.Errorf("after Close: error %v, want ErrClosed", err)
		}
	})
}

// While the database does not respond, only the first requests wait for their timeouts. If it refuses
// connections from the start, none waits.
func TestFewRequestsWaitForHangingDatabase(t *testing.T) {
	// always is a DB that does not even respond to the check of its tables.
	always := func(answer answerFunc) pgdb.DB {
		return &interceptDB{&fakeDB{},
			func(ctx context.Context, statements []*pgdb.Statement, _ answerFunc) error {
				return answer(ctx, statements)
			}}
	}
	for name, db := range map[string]pgdb.DB{"from the start": always(hang),
		"later":   &fakeDB{answer: hang, probe: hang},
		"refused": always(failWith(errors.New("connection refused")))} {
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
