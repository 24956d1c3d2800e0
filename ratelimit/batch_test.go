package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
	// What is given back may be under way still, beside a look.
	for _, key := range []string{"u0", "u1", "u2"} {
		want := 10 - admitted[key]
		left := func() int64 {
			decisions := make([]ratelimit.Decision, 1)
			if err := store.Take(ctx, 10*time.Second, []ratelimit.Hit{{Limit: user, Key: key}}, decisions); err != nil {
				t.Fatal(err)
			}
			return decisions[0].Remaining
		}
		eventually(t, fmt.Sprintf("%d are left of %s", want, key), func() bool { return left() == want })
	}
	var tokens float64
	if err := conn.QueryRow(ctx, "SELECT tokens FROM rate_limit_durable WHERE prefix = 'all'").Scan(&tokens); err != nil || tokens != 0 {
		t.Errorf("all: %v tokens, %v; want none", tokens, err)
	}
}
