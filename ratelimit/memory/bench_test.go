package memory_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

func BenchmarkTake(b *testing.B) {
	for _, keys := range []int64{1, 1000, 10000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			store := open(b, memory.Options{})
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("user:", i)
			}
			limit := &ratelimit.Limit{Prefix: "bench", Events: ratelimit.MaxEvents / 2, Window: time.Minute}
			b.ReportAllocs()
			b.SetParallelism(64)
			var goroutine atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				hits := []ratelimit.Hit{{Limit: limit, Cost: 1}}
				decisions := make([]ratelimit.Decision, 1)
				for i := goroutine.Add(1) * 7919; pb.Next(); i += 17 {
					hits[0].Key = names[i%keys]
					if err := store.Take(context.Background(), time.Second, hits, decisions); err != nil || !decisions[0].Allowed {
						b.Error(decisions[0], err)
					}
				}
			})
		})
	}
}
