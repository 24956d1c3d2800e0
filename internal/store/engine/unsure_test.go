package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestASlotThatIsTakenLateIsFreeSoon: the answer to a take was lost, and the server runs the take later, as
// one that hung. The slot is released within one and a half seconds after that, even if the answer was a
// panic.
func TestASlotThatIsTakenLateIsFreeSoon(t *testing.T) {
	const panics = -1
	for _, late := range []time.Duration{panics, 0, 600 * time.Millisecond, 3 * time.Second,
		8 * time.Second} {
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
						if late == panics {
							panic("after a slot was taken")
						}
						mu.Unlock()
						defer mu.Lock()
						return hang(ctx, statements)
					}
				}
				return nil
			}
			store := newStore(t, &fakeDB{answer: answer}, without)
			defer store.Close()
			h := ratelimit.Hit{Limit: conformance.InFlight("flight", 3), Key: "k", Cost: 1,
				Slot: &ratelimit.Slot{}}
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
