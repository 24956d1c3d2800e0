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

// TestDatabaseThatFails: all calls fail with ErrUnavailable and the cause. Calls after the
// first fail at once, without a statement, for hours. When the database answers
// again, the store finds that without any call.
func TestDatabaseThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		db := &fakeDB{answer: failWith(broken), probe: failWith(broken)}
		store := newStore(t, db, engine.Options{CleanupProbability: -1})
		if _, took,
			err := tryOne(store, time.Second, fakeHits("k")[0]); !errors.Is(err, ratelimit.ErrUnavailable) ||
			!errors.Is(err, broken) || took != 0 {
			t.Errorf("the first call: %v after %v", err, took)
		}
		q := newCallers(store, time.Second)
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			_, took, err := tryOne(store, time.Second, fakeHits("k")[0])
			_, queued := q.ask(fakeHits("k")...)
			for _, err := range []error{err, queued,
				store.Reset(context.Background(), time.Second, fakeHits("k"))} {
				if !errors.Is(err, ratelimit.ErrUnavailable) || !errors.Is(err, broken) || took != 0 {
					t.Fatalf("%v after %v", err, took)
				}
			}
		}
		runs, probes := db.count()
		if runs != 1 || probes < 3600 || probes > 4*3600 {
			t.Errorf("in an hour %d batches and %d probes", runs, probes)
		}
		db.set(nil, nil)
		time.Sleep(time.Second)
		if _, probes = db.count(); true {
			time.Sleep(time.Hour)
		}
		if _, after := db.count(); after != probes {
			t.Errorf("%d probes of a database that answers", after-probes)
		}
		if _, took, err := tryOne(store, time.Second, fakeHits("k")[0]); err != nil || took != 0 {
			t.Errorf("when the database is back: %v after %v", err, took)
		}
		store.Close()
		if _, err := q.ask(fakeHits("k")...); !errors.Is(err, ratelimit.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// stalled is a database that answers nothing, not even about its tables.
type stalled struct{}

func (stalled) Run(ctx context.Context, statements []*pgdb.Statement) error {
	return hang(ctx, statements)
}
func (stalled) Exec(ctx context.Context, _ string) error { return hang(ctx, nil) }
func (stalled) Close()                                   {}

// TestFewWaitForAHangingDatabase: while the database does not answer, from the start or
// later, only the requests of the first moments wait for their timeouts.
func TestFewWaitForAHangingDatabase(t *testing.T) {
	for name, db := range map[string]pgdb.DB{"from the start": stalled{},
		"later": &fakeDB{answer: hang, probe: hang}} {
		synctest.Test(t, func(t *testing.T) {
			const timeout, outage = 250 * time.Millisecond, 2 * time.Minute
			store := newStore(t, db, engine.Options{CleanupProbability: -1})
			var waited, last atomic.Int64
			var group sync.WaitGroup
			began := time.Now()
			for time.Since(began) < outage {
				group.Go(func() {
					asked := time.Since(began)
					switch _, took, err := tryOne(store, timeout, fakeHits("k")[0]); {
					case took > timeout:
						t.Errorf("%s: %v after %v", name, err, took)
					case took > 0:
						waited.Add(1)
						last.Store(max(last.Load(), int64(asked)))
					case !errors.Is(err, ratelimit.ErrUnavailable):
						t.Errorf("%s: %v at once", name, err)
					}
				})
				time.Sleep(5 * time.Millisecond)
			}
			group.Wait()
			// The first timeout starts the prober. The prober's first timeout is the proof.
			if got := time.Duration(last.Load()); waited.Load() == 0 || got > 600*time.Millisecond {
				t.Errorf("%s: %d requests waited, the last that came after %v", name, waited.Load(), got)
			}
			store.Close()
			time.Sleep(time.Minute) // a migration may still hang
		})
	}
}
