package engine_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
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
	held := map[int]*ratelimit.Hold{} // the slots of running requests
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
	// The loop lasts longer than the 10 s for which a process without a heartbeat counts as live. If the
	// machine is too busy to move a shard in this time, a process loses its slots. Then a sixth request may
	// run, but only after another request has lost its slot.
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
				t.Fatal("six requests run and no slot was lost, want five requests")
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
	// A request that a limit in another shard refuses keeps no slot.
	full := hitOn("slots full "+driver, 1, false)
	full.Key = keyInShard((store.ShardOf("k", testShards) + 1) % testShards)
	for _, home := range []string{"", full.Key} {
		full.Subject = home
		slot := &ratelimit.Hold{}
		hits := []ratelimit.Hit{full, {Limit: flight, Key: "k", Cost: 1, Hold: slot}}
		if home == "" && !takeAll(t, b, hits...) {
			t.Error("a request with a slot and another limit was refused, want it allowed")
		}
		if takeAll(t, b, hits...) {
			t.Error("a second request was allowed by a limit of one, want it refused")
		}
		slot.Release()
		awaitFree(t, a, flight, 2)
	}
	if moves := stop(); moves < 2 {
		t.Errorf("the shard moved %d times, want at least 2", moves)
	}
	release(3)
	awaitFree(t, b, flight, 5)
}

// testLedger checks that requests on limits of tokens in two shards, which move, are charged once, and are
// each one row of an invoice.
func (s *citusDB) testLedger(t *testing.T, driver string) {
	one := s.openStore(t, driver, engine.Options{})
	stop := s.keepMovingShard(t, "k")
	var want int64
	for i := range int64(60) {
		b := &batch.Bill{Day: time.Now().Unix() / 86400, ID: uuid(1000*len(driver) + int(i)), User: driver,
			Lines: []batch.Line{{Input: 1, Output: i}}}
		var hits []ratelimit.Hit
		for n, key := range []string{"k", keyInShard((store.ShardOf("k", testShards) + 1) % testShards)} {
			l := budget(1 << 40)
			l.Prefix = fmt.Sprint("ledger ", driver, n)
			hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 100, Hold: &ratelimit.Hold{}})
			b.Charges = append(b.Charges, batch.Charge{Limit: l, Key: key,
				Unit: []string{"tokens", "money"}[n], RealUnits: 1 + i, Hold: hits[n].Hold})
		}
		decisions := make([]ratelimit.Decision, len(hits))
		if err := one.Take(t.Context(), testTimeout, hits, decisions); err != nil || !allAllowed(decisions) {
			t.Fatalf("a request: %v, %+v", err, decisions)
		}
		one.Settle(b)
		want += 2 * (1 + i)
	}
	stop()
	sums := fmt.Sprintf(`SELECT concat_ws(' ', (SELECT sum(count) FROM unnest(ARRAY['ledger %[1]s0',
		'ledger %[1]s1']) p, rate_limit_counters(p, true)), count(*), sum(jsonb_array_length(charges)),
		(SELECT sum((c->>'units')::numeric * CASE c->>'unit' WHEN 'money' THEN 1000000 ELSE 1 END)::bigint
		FROM rate_limit_ledger_rows(user_id => '%[1]s') r, jsonb_array_elements(r.charges) c))
		FROM rate_limit_ledger_rows(user_id => '%[1]s')`, driver)
	text := fmt.Sprint(want, " 60 120 ", want)
	await.Within(t, 30*time.Second, "the settlements, "+text, func() bool {
		return cluster.Query[string](t, s.DSN(), sums) == text
	})
	correct := fmt.Sprintf(`SELECT rate_limit_correct(jsonb_agg(jsonb_build_object('id', b.id, 'time', b.time,
		'lines', jsonb_build_array(jsonb_build_object('billionths', 7)))), 'a test')
		FROM rate_limit_bills('-infinity', 'infinity') b WHERE b.user_id = '%s'`, driver)
	check.Equal(t, "corrections", cluster.Query[int64](t, s.DSN(), correct), int64(60))
	check.Equal(t, "further ones", cluster.Query[int64](t, s.DSN(), correct), int64(0))
	invoice := fmt.Sprintf("SELECT concat_ws(' ', sum(requests), sum(money)) FROM rate_limit_invoice('%s')",
		driver)
	check.Equal(t, "the invoice", cluster.Query[string](t, s.DSN(), invoice), "60 0.000000420")
	counted := fmt.Sprintf(`SELECT (sum(count) * 1000 + sum(remainder))::bigint
		FROM rate_limit_counters('ledger %s1', true)`, driver)
	check.Equal(t, "the counter of money", cluster.Query[int64](t, s.DSN(), counted), want/2*1000+420)
}
