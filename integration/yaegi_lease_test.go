package integration

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestInterpretedLeases: with a lease, most requests do not ask the database, the headers say
// what they would say without, and when the key is idle the row says what was admitted.
func TestInterpretedLeases(t *testing.T) {
	p := loadPlugin(t)
	const requests = 1500
	idle := map[string]func(t *testing.T){}
	for _, algorithm := range []string{"sliding_window", "fixed_window", "token_bucket"} {
		for _, key := range []string{"{header.X-Key}", "{remote_ip}", "text", "{header.X-Key}-{method}"} {
			if algorithm != "fixed_window" && key != "{remote_ip}" {
				continue
			}
			dsn := cluster.Open(t)
			t.Run(algorithm+" "+key, func(t *testing.T) {
				config := decideAlways(object{"dsn": dsn, "prefix": "leased", "key": key, "limit": "30000 1h", "algorithm": algorithm, "lease": "5%", "cleanupProbability": "0"})
				h := p.mustHandler(t, ok, config)
				other := p.mustHandler(t, ok, config) // of another router
				less := 0
				for i := range requests {
					use := h
					if i%3 == 0 {
						use = other
					}
					w := ask(use, "X-Key", "k")
					left, err := strconv.Atoi(w.Header().Get("X-RateLimit-Remaining"))
					want := 30000 - 1 - i
					if left < want && left >= want-1500 {
						less++ // the database decided it while a renewal was under way
						left = want
					}
					if w.Code != http.StatusOK || err != nil || left != want || w.Header().Get("X-RateLimit-Limit") != "30000" || len(w.Header().Get("X-RateLimit-Reset")) != 10 {
						t.Fatalf("request %d: %d %v\n%s", i, w.Code, w.Header(), p.err)
					}
				}
				if less > requests/10 {
					t.Errorf("%d of %d requests were told less than is left", less, requests)
				}
			})
			// The units go back after six seconds, those of all keys at once.
			idle[algorithm+" "+key+" when it is idle"] = func(t *testing.T) {
				used := "SELECT coalesce(sum(count), 0) FROM rate_limit_ephemeral"
				if algorithm == "token_bucket" {
					used = "SELECT coalesce(sum(30000 - tokens), 0)::bigint FROM rate_limit_ephemeral"
				}
				await(t, "the row to say what was admitted", func() bool { return queryInt(t, dsn, used) == requests })
				writes := int64(0)
				await(t, "statistics", func() bool {
					writes = queryInt(t, dsn, "SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0)::bigint FROM pg_stat_user_tables WHERE relname = 'rate_limit_ephemeral'")
					return writes > 0
				})
				if writes > requests/2 {
					t.Errorf("%d requests wrote %d times", requests, writes)
				}
			}
		}
	}
	for name, test := range idle {
		t.Run(name, test)
	}
}

// TestInterpretedLeasesAreNeverMoreThanTheLimit: two plugins that lease from one row admit the
// quota, and not more.
func TestInterpretedLeasesAreNeverMoreThanTheLimit(t *testing.T) {
	dsn := cluster.Open(t)
	const limit = 2000
	config := object{"dsn": dsn, "prefix": "leased", "limit": strconv.Itoa(limit) + " 1h", "algorithm": "fixed_window", "lease": "50%"}
	var handlers []http.Handler
	for range 2 {
		handlers = append(handlers, loadPlugin(t).mustHandler(t, ok, decideAlways(config)))
	}
	var admitted atomic.Int64
	var wait sync.WaitGroup
	for caller := range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for range 400 {
				if ask(handlers[caller%2]).Code == http.StatusOK {
					admitted.Add(1)
				}
			}
		}()
	}
	wait.Wait()
	if n := admitted.Load(); n > limit {
		t.Errorf("%d of %d passed", n, limit)
	}
	// What was refused too early passes once the other plugin has given back what it held.
	await(t, "the rest of the quota", func() bool {
		time.Sleep(10 * time.Millisecond)
		if ask(handlers[0]).Code == http.StatusOK {
			admitted.Add(1)
		}
		return admitted.Load() >= limit
	})
	for range 50 {
		if ask(handlers[0]).Code == http.StatusOK || ask(handlers[1]).Code == http.StatusOK {
			t.Fatal("more than the quota passed")
		}
	}
}
