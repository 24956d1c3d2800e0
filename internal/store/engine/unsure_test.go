package engine_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestASlotThatIsTakenLateIsFreeSoon: the answer to a take was lost, and the server runs the take later, as one that hung. The slot
// is given back within one and a half seconds after that.
func TestASlotThatIsTakenLateIsFreeSoon(t *testing.T) {
	for _, late := range []time.Duration{0, 600 * time.Millisecond, 3 * time.Second, 8 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var taken, left time.Time // when the server has the slot, and no longer; guarded by mu
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range statements {
					switch {
					case strings.Contains(s.SQL, "RETURNING process"):
						addRow(s, [][]byte{int8(1000)})
					case strings.Contains(s.SQL, "-u.first"):
						if now := time.Now(); left.IsZero() && !taken.IsZero() && !now.Before(taken) {
							left = now
						}
					case returnsRows(s) && taken.IsZero():
						taken = time.Now().Add(250*time.Millisecond + late)
						mu.Unlock()
						defer mu.Lock()
						return hang(ctx, statements)
					}
				}
				return nil
			}
			store := newStore(t, &fakeDB{answer: answer}, without)
			defer store.Close()
			h := ratelimit.Hit{Limit: conformance.InFlight("flight", 3), Key: "k", Cost: 1, Slot: &ratelimit.Slot{}}
			if _, _, err := tryOne(store, 250*time.Millisecond, h); err == nil {
				t.Fatal("a take without an answer is decided")
			}
			time.Sleep(late + 2*time.Second)
			mu.Lock()
			defer mu.Unlock()
			if took := left.Sub(taken); left.IsZero() || took > 1500*time.Millisecond {
				t.Errorf("a slot taken %v late was given back %v after that", late, took)
			}
		})
	}
}

// A request whose batch ends in a panic fails, and its slot is free again.
func TestASlotIsFreeAfterAPanic(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool // panics after the next statement that takes a slot
	db := &between{drivers.All["pgxdb"](t, cluster.Open(t)), func(ctx context.Context, statements []*pgdb.Statement, send answerFunc) error {
		err := send(ctx, statements)
		for _, s := range statements {
			if strings.Contains(s.SQL, "RETURNING slot") && armed.CompareAndSwap(true, false) {
				panic("after a slot was taken")
			}
		}
		return err
	}}
	store := newStore(t, db, engine.Options{CleanupProbability: -1})
	l := conformance.InFlight("flight", 3)
	window := &ratelimit.Limit{Prefix: "window", Events: 100, Window: time.Hour}
	held := enter(t, store, l, 1, nil)
	for _, hits := range [][]ratelimit.Hit{
		{{Limit: l, Key: "k", Cost: 1, Slot: &ratelimit.Slot{}}},
		{{Limit: window, Key: "k", Cost: 1}, {Limit: l, Key: "k", Cost: 1, Slot: &ratelimit.Slot{}}},
	} {
		armed.Store(true)
		if err := store.Take(context.Background(), 20*time.Second, hits, make([]ratelimit.Decision, len(hits))); err == nil || !strings.Contains(err.Error(), "panic") {
			t.Errorf("%d hits: %v, want a panic", len(hits), err)
		}
	}
	awaitFree(t, store, l, 2)
	held[0].Release()
	awaitFree(t, store, l, 3)
}
