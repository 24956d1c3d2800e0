package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// keepMovingShard moves the shard of a key until stop is called. stop returns the number of moves.
func (s *citusDB) keepMovingShard(t *testing.T, key string) (stop func() int) {
	shard := store.ShardOf(key, testShards)
	ended := make(chan int, 1)
	stopped := int32(0)
	t.Cleanup(func() { atomic.StoreInt32(&stopped, 1) })
	go func() {
		moves := 0
		for ; atomic.LoadInt32(&stopped) == 0; moves++ {
			s.moveShard(shard, (s.workerOf(shard)+1)%3)
			time.Sleep(50 * time.Millisecond)
		}
		ended <- moves
	}()
	return func() int {
		atomic.StoreInt32(&stopped, 1)
		moves := <-ended
		t.Logf("%d moves", moves)
		return moves
	}
}

// testSlots checks that requests keep their slots while shards move.
func (s *citusDB) testSlots(t *testing.T, driver string) {
	flight := conformance.InFlight("slots "+driver, 5)
	a, b := s.openStore(t, driver, engine.Options{}), s.openStore(t, driver, engine.Options{})
	held := map[int]*ratelimit.Slot{} // of the requests that run
	lost := make(chan int, 100)
	ids := 0
	run := func(store ratelimit.Store) bool {
		ids++
		id := ids
		slots := takeSlots(t, store, flight, 1, func() { lost <- id })
		if len(slots) == 1 {
			held[id] = slots[0]
		}
		return len(slots) == 1
	}
	for range 8 {
		run(a)
	}
	if len(held) != 5 {
		t.Fatalf("%d requests run, want 5", len(held))
	}
	stop := s.keepMovingShard(t, "k")
	// Longer than a process counts as alive without a heartbeat. On a machine that is too busy to move
	// a shard in this time, a process loses its slots. A sixth request may then run, but only in place of one
	// that has lost its own.
	const beat = 50 * time.Millisecond
	for until := time.Now().Add(11 * time.Second); time.Now().Before(until); time.Sleep(beat) {
		for _, store := range []ratelimit.Store{a, b} {
			if !run(store) {
				continue
			}
			select {
			case id := <-lost:
				delete(held, id)
			case <-time.After(testTimeout):
				t.Fatal("a sixth request runs, and none has lost its slot")
			}
		}
	}
	release := func(n int) {
		for id, slot := range held {
			if n--; n < 0 {
				return
			}
			slot.Release()
			delete(held, id)
		}
	}
	release(2)
	awaitFree(t, b, flight, 2)
	// Beside a limit of another shard that is used up, a request leaves no slot behind.
	full := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "slots full " + driver,
		Algorithm: ratelimit.FixedWindow, Events: 1, Window: time.Hour}, Key: keyInOtherShard("k"), Cost: 1}
	for _, home := range []string{"", full.Key} {
		full.Subject = home
		slot := &ratelimit.Slot{}
		hits := []ratelimit.Hit{full, {Limit: flight, Key: "k", Cost: 1, Slot: slot}}
		if home == "" && !takeAll(t, b, hits...) {
			t.Error("a request with a slot and another limit was refused, want it allowed")
		}
		if takeAll(t, b, hits...) {
			t.Error("a second request was allowed by a limit of one, want it refused")
		}
		slot.Release()
		awaitFree(t, a, flight, 2)
	}
	if stop() < 2 {
		t.Error("the shard moved less than twice")
	}
	release(3)
	awaitFree(t, b, flight, 5)
}
