package engine_test

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestSilentProcessesHoldFewUnits has eight processes use up a quota of 4,000, in the virtual time of the simulation.
// Half of them fall silent on the way. The units that others hold at the first refusal are those that pass after it.
func TestSilentProcessesHoldFewUnits(t *testing.T) {
	runs := 40
	if testing.Short() || raced {
		runs = 10
	}
	for _, horizon := range []time.Duration{time.Second, 4 * time.Second} {
		t.Run(fmt.Sprint("horizon ", horizon), func(t *testing.T) {
			var held []int64
			leased := int64(0)
			for seed := range runs {
				synctest.Test(t, func(t *testing.T) {
					late, decided := useUp(t, chance(0).of(int64(seed)), horizon)
					held, leased = append(held, late), leased+decided
					time.Sleep(time.Minute) // goroutines end
				})
			}
			slices.Sort(held)
			most := held[runs*9/10-1]
			t.Logf("others held at most %d units in nine of ten runs, %v in all; %d %% of the quota was leased", most, held, leased*100/int64(runs*usedUp))
			if most > 40 {
				t.Errorf("others held up to %d units", most)
			}
			if leased == 0 {
				t.Error("no lease decided a request")
			}
		})
	}
}

// usedUp is the quota in TestSilentProcessesHoldFewUnits.
const usedUp = 4000

// useUp returns how much of the quota was left for requests after the first refusal, and how many requests leases decided.
func useUp(t *testing.T, seed chance, horizon time.Duration) (late, leased int64) {
	limit := &ratelimit.Limit{Prefix: "near", Events: usedUp, Window: time.Hour, Algorithm: ratelimit.FixedWindow, Lease: 0.05}
	server := newSimServer([]*ratelimit.Limit{limit}, nil)
	mean := time.Duration(2+seed.of(1).below(48)) * time.Millisecond // between two requests of a process
	silence := time.Now().Add(time.Duration(float64(usedUp/8*mean) * (0.7 + 0.3*seed.of(2).share())))
	var passed, after, refused atomic.Int64 // refused is the virtual time of the first refusal; 0 is none
	more := func(i int64) bool {
		if at := refused.Load(); at > 0 {
			return i < 4 && time.Since(time.UnixMicro(at)) < 4*horizon
		}
		return i < 4 || time.Now().Before(silence)
	}
	var stores []*engine.Store
	var running sync.WaitGroup
	for i := range int64(8) {
		db := &simDB{server: server, plan: &simPlan{noise: 300 * time.Microsecond}, proxy: int(i), chance: seed.of(3, i), far: 300 * time.Microsecond}
		hash := func(_ maphash.Seed, key string) uint64 { return uint64(seed.of(5).text(key)) }
		store, err := engine.New(db, engine.Options{DisableMigration: true, LeaseHorizon: horizon, Random: seed.of(4, i).share, Hash: hash})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, store)
		running.Go(func() {
			decisions := make([]ratelimit.Decision, 1)
			for n := int64(0); more(i); n++ {
				time.Sleep(seed.of(6, i, n).wait(mean))
				if err := store.Take(context.Background(), 20*time.Second, []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1}}, decisions); err != nil {
					t.Error(err)
					return
				}
				switch {
				case !decisions[0].Allowed:
					refused.CompareAndSwap(0, time.Now().UnixMicro())
				case refused.Load() == 0:
					passed.Add(1)
				default:
					after.Add(1)
				}
			}
		})
	}
	running.Wait()
	for _, s := range stores {
		leased += s.Stats().Leased
		s.Close()
	}
	if all := passed.Load() + after.Load(); all != usedUp {
		t.Errorf("%d passed, of a quota of %d", all, usedUp)
	}
	return after.Load(), leased
}
