package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/store/shards"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// testFeatures are what a store does besides counting, in shards, most of it while the shards move.
func (s *spread) testFeatures(t *testing.T) {
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+": slots of requests in flight stay while shards move",
			func(t *testing.T) { s.testSlots(t, driver) })
		t.Run(driver+": refunds, resets and settlements reach shards that move",
			func(t *testing.T) { s.testRefunds(t, driver) })
		t.Run(driver+": leases never pass more than the limit while shards move",
			func(t *testing.T) { s.testLeases(t, driver) })
	}
	t.Run("a proxy decides by itself for shards that are down", s.testLocal)
}

// moving moves the shard of a key until stop is called, which returns how often that was.
func (s *spread) moving(t *testing.T, key string) (stop func() int) {
	shard := shards.Of(key, testShards)
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
	// Longer than a process is believed to run without a sign of life. On a machine that is too busy to move
	// a shard in this time, a process loses its slots. A sixth request may then run, but only in place of one
	// that is told.
	for until := time.Now().Add(11 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
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

func (s *spread) testRefunds(t *testing.T, driver string) {
	store := s.store(t, driver, engine.Options{})
	h := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "refunds " + driver, Algorithm: ratelimit.FixedWindow,
		Events: 1000, Window: time.Hour}, Key: "of r", Subject: "r", Cost: 3}
	stop := s.moving(t, "r")
	for range 100 {
		takeOne(t, store, h)
		back := h
		back.Cost = -2
		takeOne(t, store, back)
		time.Sleep(10 * time.Millisecond)
	}
	if n := left(t, store, h); n != 900 {
		t.Errorf("%d are left, want 900", n)
	}
	for _, secret := range []bool{false, true} {
		h.Secret = secret
		before := left(t, store, h)
		d := takeOne(t, store, h)
		settlement := settlementOf(h, d, 2) // with the key as it is stored
		settlement.Subject = h.Subject
		store.Settle(settlement)
		await.Within(t, longTime, "a settlement", func() bool { return left(t, store, h) == before-1 })
	}
	if err := store.Reset(context.Background(), longTime, []ratelimit.Hit{h}); err != nil {
		t.Error(err)
	}
	if n := left(t, store, h); n != 1000 {
		t.Errorf("%d are left after a reset, want 1000", n)
	}
	if stop() < 2 {
		t.Error("nothing moved")
	}
}

func (s *spread) testLeases(t *testing.T, driver string) {
	for _, durable := range []bool{false, true} {
		limit := &ratelimit.Limit{Prefix: fmt.Sprint("leases ", driver, durable),
			Algorithm: ratelimit.FixedWindow, Events: 4000, Window: time.Hour, Lease: 0.05, Durable: durable}
		h := ratelimit.Hit{Limit: limit, Key: "leased", Cost: 1}
		stop := s.moving(t, h.Key)
		granted, leased := int64(0), int64(0)
		var stores []*store.Store
		var callers sync.WaitGroup
		for range 2 {
			store := s.store(t, driver, engine.Options{LeaseHorizon: 100 * time.Millisecond})
			stores = append(stores, store)
			for range 4 {
				callers.Add(1)
				go func() {
					defer callers.Done()
					for range 750 {
						if d, _, err := tryOne(store, longTime, h); err != nil {
							t.Error(err)
						} else if d.Allowed {
							atomic.AddInt64(&granted, 1)
						}
						time.Sleep(2 * time.Millisecond)
					}
				}()
			}
		}
		callers.Wait()
		if stop() < 1 {
			t.Error("nothing moved")
		}
		for _, store := range stores {
			leased += store.Stats().Leased
			store.Close()
		}
		table := map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[durable]
		counted := s.counted(table, limit.Prefix)[shards.Of(h.Key, testShards)]
		t.Logf("durable %v: %d of 6000 requests passed, %d by leases, %d are counted", durable, granted,
			leased, counted)
		if granted > 4000 || counted > 4000 || counted < granted || leased == 0 {
			t.Errorf("durable %v: %d passed, %d by leases, %d are counted; want at most 4000 of each, and "+
				"what passed counted", durable, granted, leased, counted)
		}
	}
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
	store := newProxy(t, drivers.All["pgxdb"](t, s.DSN()),
		engine.Options{OnError: func(err error) { t.Log("reported:", err) }},
		registry.Node{Name: "local", Epoch: 7})
	store.UseLocal()
	store.Prepare()
	down, up := hitOn("local", 100, true), hitOn("local", 100, true)
	down.Key, up.Key = s.at(1), s.at(0)
	down.Limit.SynchronousCommit = true // the kill loses nothing
	lost := hitOn("lost", 1000, false)
	lost.Key = down.Key
	takeOne(t, store, down)
	await.Within(t, longTime, "the registration", func() bool {
		return len(s.rows(s.DSN(), "SELECT node FROM rate_limit_nodes WHERE node = 'local'")) == 1
	})
	if err := s.Workers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	await.Within(t, longTime, "an outage", func() bool {
		_, _, err := tryOne(store, longTime, lost)
		return errors.Is(err, ratelimit.ErrUnavailable)
	})
	for range 10 {
		decisions := make([]ratelimit.Decision, 1)
		_, _, err := tryOne(store, longTime, down)
		if err == nil || !store.TakeLocal(err, []ratelimit.Hit{down}, decisions) || !decisions[0].Allowed {
			t.Fatalf("%+v, %v", decisions, err)
		}
		takeOne(t, store, up)
	}
	if !store.Local().On {
		t.Error("the store does not say that it decides by itself")
	}
	if err := s.Workers[1].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, 30*time.Second, "the charges of the time without the worker", func() bool {
		return s.counted("rate_limit_durable", "local")[shards.Of(down.Key, testShards)] == 11
	})
	await.Within(t, 30*time.Second, "the end of local limits", func() bool { return !store.Local().On })
	if n := left(t, store, up); n != 90 {
		t.Errorf("of the shard that was up, %d are left, want 90", n)
	}
}
