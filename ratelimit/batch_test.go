package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestBatchIsSequential decides random requests of one hit in one batch, and one
// after the other in memory: merging and waves must not change an answer.
func TestBatchIsSequential(t *testing.T) {
	c := &clock{}
	store, conn := openPostgres(t, ratelimit.PostgresOptions{Now: c.read, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	ctx := context.Background()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		memory := ratelimit.NewMemory(0, c.read)
		memory.KeepExpired()
		c.now = 1_700_000_000 * second
		// Prefixes of their own leave rows of earlier runs alone.
		limits := []*ratelimit.Limit{drawLimit(t, fmt.Sprint("a", run)), drawLimit(t, fmt.Sprint("b", run))}
		if rapid.Bool().Draw(t, "two limits on a row") {
			limits[1].Prefix, limits[1].Durable = limits[0].Prefix, limits[0].Durable
		}
		for batch := rapid.IntRange(1, 3).Draw(t, "batches"); batch > 0; batch-- {
			c.now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 3*span(limits[0]))).Draw(t, "advance")
			if c.now > 5_000_000_000*second {
				c.now = 1_700_000_000 * second
			}
			var requests []*ratelimit.Request
			for n := rapid.IntRange(1, 20).Draw(t, "requests"); n > 0; n-- {
				l := limits[rapid.IntRange(0, 1).Draw(t, "limit")]
				requests = append(requests, &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l,
					Key: rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"), Cost: rapid.Int64Range(-2, 4).Draw(t, "cost")}}})
			}
			store.RunBatch(requests)
			for i, r := range requests {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				want := make([]ratelimit.Decision, 1)
				if err := memory.Take(ctx, time.Second, r.Hits, want); err != nil {
					t.Fatal(err)
				}
				got := r.Decisions[0]
				// Equal hits are decided at once: an early one sees the reset
				// that all of them leave.
				got.Source = want[0].Source
				got.Source = want[0].Source
				if got.Allowed {
					got.Reset = want[0].Reset
				}
				if want[0] != got {
					t.Fatalf("request %d of %d: %+v cost %d:\n  one by one %+v\n    a batch %+v", i, len(requests), *r.Hits[0].Limit, r.Hits[0].Cost, want[0], got)
				}
			}
			for _, r := range requests {
				want, ok := memory.RowOf(r.Hits[0])
				got, _ := readRow(t, conn, r.Hits[0])
				want.Expires, got.Expires = 0, 0
				if ok && want != got {
					t.Fatalf("%+v: row\n  one by one %+v\n    a batch %+v", *r.Hits[0].Limit, want, got)
				}
			}
		}
	})
}

// TestAllOrNothing lets many requests of several limits run at once: what was
// charged to each limit is what the admitted requests cost, and no refusal was
// due to a charge that was given back.
func TestAllOrNothing(t *testing.T) {
	store, conn := openPostgres(t, ratelimit.PostgresOptions{})
	ctx := context.Background()
	user := &ratelimit.Limit{Prefix: "user", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour}
	all := &ratelimit.Limit{Prefix: "all", Algorithm: ratelimit.TokenBucket, Events: 15, Window: time.Hour, Durable: true}
	var mu sync.Mutex
	admitted := map[string]int64{}
	var group sync.WaitGroup
	for i := 0; i < 60; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			key := fmt.Sprint("u", i%3)
			decisions := make([]ratelimit.Decision, 2)
			err := store.Take(ctx, 10*time.Second, []ratelimit.Hit{{Limit: user, Key: key, Cost: 1}, {Limit: all, Key: "", Cost: 1}}, decisions)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if decisions[0].Allowed && decisions[1].Allowed {
				admitted[key]++
			}
		}()
	}
	group.Wait()
	if total := admitted["u0"] + admitted["u1"] + admitted["u2"]; total != 15 {
		t.Errorf("admitted %d of a quota of 15: %v", total, admitted)
	}
	// A look behind the queue waits for what is being given back.
	for _, key := range []string{"u0", "u1", "u2"} {
		decisions := make([]ratelimit.Decision, 1)
		if err := store.Take(ctx, 10*time.Second, []ratelimit.Hit{{Limit: user, Key: key}}, decisions); err != nil {
			t.Fatal(err)
		}
		if want := 10 - admitted[key]; decisions[0].Remaining != want {
			t.Errorf("%s: %d remain, want %d", key, decisions[0].Remaining, want)
		}
	}
	var tokens float64
	if err := conn.QueryRow(ctx, "SELECT tokens FROM rate_limit_durable WHERE prefix = 'all'").Scan(&tokens); err != nil || tokens != 0 {
		t.Errorf("all: %v tokens, %v; want none", tokens, err)
	}
}
