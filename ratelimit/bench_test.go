package ratelimit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
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
		b.Run(fmt.Sprint("memory/keys=", keys), func(b *testing.B) { benchmarkTake(b, ratelimit.NewMemory(0, nil), keys) })
		b.Run(fmt.Sprint("postgres/keys=", keys), func(b *testing.B) {
			store, _ := openPostgres(b, ratelimit.PostgresOptions{})
			benchmarkTake(b, store, keys)
			s := store.Stats()
			b.ReportMetric(float64(s.Requests)/float64(s.Batches), "hits/batch")
		})
	}
}
