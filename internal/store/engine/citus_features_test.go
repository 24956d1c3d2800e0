package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// testFeatures tests what a store does besides counting, in shards.
func (s *spread) testFeatures(t *testing.T) {
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+": slots of requests in flight stay while shards move",
			func(t *testing.T) { s.testSlots(t, driver) })
	}
	t.Run("a proxy decides by itself for shards that are down", s.testLocal)
}

// moving moves the shard of a key until stop is called, which returns how often that was.
func (s *spread) moving(t *testing.T, key string) (stop func() int) {
	shard := store.ShardOf(key, testShards)
	ended := make(chan int, 1)
	stopped := int32(0)
	t.Cleanup(func() { atomic.StoreInt32(&stopped, 1) })
	go func() {
		moves := 0
		for ; atomic.LoadInt32(&stopped) == 0; moves++ {
			s.move(shard, (s.where(shard)+1)%3)
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

func (s *spread) testSlots(t *testing.T, driver string) {
	flight := conformance.InFlight("slots "+driver, 5)
	a, b := s.store(t, driver, engine.Options{}), s.store(t, driver, engine.Options{})
	held := map[int]*ratelimit.Slot{} // of the requests that run
	lost := make(chan int, 100)
	ids := 0
	run := func(store ratelimit.Store) bool {
		ids++
		id := ids
		slots := enter(t, store, flight, 1, func() { lost <- id })
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
	stop := s.moving(t, "k")
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
			case <-time.After(longTime):
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
		Algorithm: ratelimit.FixedWindow, Events: 1, Window: time.Hour}, Key: apartFrom("k"), Cost: 1}
	for _, home := range []string{"", full.Key} {
		full.Subject = home
		slot := &ratelimit.Slot{}
		hits := []ratelimit.Hit{full, {Limit: flight, Key: "k", Cost: 1, Slot: slot}}
		if home == "" && !passes(t, b, hits...) {
			t.Error("a request with a slot and another limit was refused")
		}
		if passes(t, b, hits...) {
			t.Error("a second request passes a limit of one")
		}
		slot.Release()
		awaitFree(t, a, flight, 2)
	}
	if stop() < 2 {
		t.Error("nothing moved")
	}
	release(3)
	awaitFree(t, b, flight, 5)
}

// at is a key with a shard on a worker.
func (s *spread) at(worker int) string {
	for shard := range testShards {
		if s.where(shard) == worker {
			return keyIn(shard)
		}
	}
	s.t.Fatalf("no shard is on worker %d", worker)
	return ""
}

func (s *spread) testLocal(t *testing.T) {
	ctx := context.Background()
	proxy := newProxy(t, drivers.All["pgxdb"](t, s.DSN()),
		engine.Options{OnError: func(err error) { t.Log("reported:", err) }},
		registry.Node{Name: "local", Epoch: 7})
	proxy.UseLocal()
	proxy.Prepare()
	down, up := hitOn("local", 100, true), hitOn("local", 100, true)
	down.Key, up.Key = s.at(1), s.at(0)
	down.Limit.SynchronousCommit = true // the kill loses nothing
	lost := hitOn("lost", 1000, false)
	lost.Key = down.Key
	takeOne(t, proxy, down)
	await.Within(t, longTime, "the registration", func() bool {
		return len(cluster.Texts(s.t, s.DSN(), "SELECT node FROM rate_limit_nodes WHERE node = 'local'")) == 1
	})
	if err := s.Workers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	await.Within(t, longTime, "an outage", func() bool {
		_, _, err := tryOne(proxy, longTime, lost)
		return errors.Is(err, ratelimit.ErrUnavailable)
	})
	for range 10 {
		decisions := make([]ratelimit.Decision, 1)
		_, _, err := tryOne(proxy, longTime, down)
		if err == nil || !proxy.TakeLocal(err, []ratelimit.Hit{down}, decisions) || !decisions[0].Allowed {
			t.Fatalf("%+v, %v", decisions, err)
		}
		takeOne(t, proxy, up)
	}
	if !proxy.Local().On {
		t.Error("the store does not say that it decides by itself")
	}
	if err := s.Workers[1].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, 30*time.Second, "the charges of the time without the worker", func() bool {
		return s.counted("rate_limit_durable", "local")[store.ShardOf(down.Key, testShards)] == 11
	})
	await.Within(t, 30*time.Second, "the end of local limits", func() bool { return !proxy.Local().On })
	if n := left(t, proxy, up); n != 90 {
		t.Errorf("of the shard that was up, %d are left, want 90", n)
	}
}
