package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

var benchKeys = func() []string {
	keys := make([]string, 10000)
	for i := range keys {
		keys[i] = fmt.Sprint("user:", i)
	}
	return keys
}()

func benchmarkTake(b *testing.B, store ratelimit.Store, keys int) {
	limit := &ratelimit.Limit{Prefix: "bench", Events: ratelimit.MaxEvents / 2, Window: time.Minute}
	b.ReportAllocs()
	b.SetParallelism(64)
	var goroutine atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		hits := []ratelimit.Hit{{Limit: limit, Cost: 1}}
		decisions := make([]ratelimit.Decision, 1)
		for i := int(goroutine.Add(1)) * 7919; pb.Next(); i += 17 {
			hits[0].Key = benchKeys[i%keys]
			if err := store.Take(context.Background(), 10*time.Second, hits, decisions); err != nil || !decisions[0].Allowed {
				b.Error(decisions[0], err)
			}
		}
	})
}

func BenchmarkTake(b *testing.B) {
	for _, keys := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			store := newSite(b).store(postgres.Options{})
			benchmarkTake(b, store, keys)
			s := store.Stats()
			b.ReportMetric(float64(s.Requests)/float64(s.Batches), "hits/batch")
		})
	}
}

// BenchmarkSnapshot decides on one hot key, one call after the other, while another session
// keeps a snapshot open. It reports the time of a decision in the first second, in the last
// second of the time that the snapshot is open, and after the snapshot.
func BenchmarkSnapshot(b *testing.B) {
	const open = 20 * time.Second
	s := newSite(b)
	store := s.store(postgres.Options{CleanupProbability: -1})
	h := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "bench", Events: ratelimit.MaxEvents / 2, Window: time.Hour}, Key: "hot", Cost: 1}
	perDecision := func() float64 {
		n := 0
		began := time.Now()
		for ; time.Since(began) < time.Second; n++ {
			takeOne(b, store, h)
		}
		return float64(time.Since(began).Microseconds()) / float64(n)
	}
	takeOne(b, store, h) // creates the tables
	for range b.N {
		s.exec("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM rate_limit_ephemeral")
		began := time.Now()
		b.ReportMetric(perDecision(), "first-µs/decision")
		last := 0.0
		for time.Since(began) < open {
			last = perDecision()
		}
		b.ReportMetric(last, "last-µs/decision")
		s.exec("COMMIT")
		b.ReportMetric(perDecision(), "after-µs/decision")
	}
}

// BenchmarkRefund gives units back to so many of 100,000 rows of an analyzed table at once.
func BenchmarkRefund(b *testing.B) {
	for _, n := range []int{1, 25, 100} {
		b.Run(fmt.Sprint("rows=", n), func(b *testing.B) {
			s := newSite(b)
			store := s.store(postgres.Options{CleanupProbability: -1})
			limit := &ratelimit.Limit{Prefix: "bench", Algorithm: ratelimit.FixedWindow, Events: ratelimit.MaxEvents / 2, Window: time.Hour}
			takeOne(b, store, ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}) // creates the tables
			s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
				SELECT 'bench', 'user:' || n, 1000000, now(), now() + interval '1 hour' FROM generate_series(0, 99999) n`)
			s.exec("VACUUM ANALYZE rate_limit_ephemeral")
			var calls []*batch.Call
			for b.Loop() {
				calls = calls[:0]
				for i := range n {
					calls = append(calls, callFor(false, ratelimit.Hit{Limit: limit, Key: benchKeys[(b.N+i*97)%len(benchKeys)], Cost: -1}))
				}
				store.DecideBatch(calls)
			}
		})
	}
}
