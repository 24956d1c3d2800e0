package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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
