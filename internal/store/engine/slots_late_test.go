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

// If a take times out and the server executes the take later, the slot is released within 1.5 s after that.
// The same holds if the DB panics after the server has executed the take.
func TestLateSlotIsReleased(t *testing.T) {
	for name, late := range map[string]time.Duration{"a panic": 0, "0s late": 0,
		"0.6s late": 600 * time.Millisecond,
		"3s late":   3 * time.Second, "8s late": 8 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var taken, released time.Time // when the slot was taken and released; guarded by mu
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range statements {
					switch {
					// the heartbeat that starts a session
					case strings.Contains(s.SQL, "RETURNING process"):
						addRow(s, int8(1000))
					// the release of a slot
					case strings.Contains(s.SQL, "-u.first"):
						if now := time.Now(); released.IsZero() && !taken.IsZero() && !now.Before(taken) {
							released = now
						}
					// the take
					case returnsRows(s) && taken.IsZero():
						taken = time.Now().Add(250*time.Millisecond + late)
						if name == "a panic" {
							panic("after a slot was taken")
						}
						mu.Unlock()
						defer mu.Lock()
						return hang(ctx, statements)
					}
				}
				return nil
			}
			store := newEngine(t, &fakeDB{answer: answer}, bareOptions)
			defer store.Close()
			h := ratelimit.Hit{Limit: conformance.InFlight("flight", 3), Key: "k", Cost: 1,
				Hold: &ratelimit.Hold{}}
			if _, _, err := tryOne(store, 250*time.Millisecond, h); err == nil {
				t.Fatal("a take without a result: got no error, want one")
			}
			time.Sleep(late + 2*time.Second)
			mu.Lock()
			defer mu.Unlock()
			if took := released.Sub(taken); released.IsZero() || took > 1500*time.Millisecond {
				t.Errorf("%s: the slot was released %v after the take, want at most 1.5s", name, took)
			}
		})
	}
}
