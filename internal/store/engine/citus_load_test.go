package engine_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// shardTimeout is the timeout of a request in tests that move shards.
const shardTimeout = 250 * time.Millisecond

// shardLoad counts the results of requests by shard.
type shardLoad struct {
	Granted, Unknown [testShards]int64 // atomic; Unknown has the failed requests
	Requests         int64
}

// run takes hits on many keys until stop is closed.
func (l *shardLoad) run(to ratelimit.Store, limit *ratelimit.Limit, callers, keys int,
	stop <-chan struct{}) *sync.WaitGroup {
	var group sync.WaitGroup
	for c := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			d := make([]ratelimit.Decision, 1)
			for i := c; ; i += callers {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint("key ", i%keys)
				shard := store.ShardOf(key, testShards)
				err := to.Take(context.Background(), shardTimeout,
					[]ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, d)
				atomic.AddInt64(&l.Requests, 1)
				switch {
				case err != nil:
					atomic.AddInt64(&l.Unknown[shard], 1)
					time.Sleep(time.Millisecond)
				case d[0].Allowed:
					atomic.AddInt64(&l.Granted[shard], 1)
				}
			}
		}()
	}
	return &group
}

// snapshot returns a copy of the counts.
func (l *shardLoad) snapshot() *shardLoad {
	c := &shardLoad{Requests: atomic.LoadInt64(&l.Requests)}
	for shard := range testShards {
		c.Granted[shard] = atomic.LoadInt64(&l.Granted[shard])
		c.Unknown[shard] = atomic.LoadInt64(&l.Unknown[shard])
	}
	return c
}

// checkCounts compares the granted hits with the counts, except in lost shards. A failed request may have
// been counted.
func (s *citusDB) checkCounts(t *testing.T, l *shardLoad, table, prefix string, lost map[int]bool) {
	t.Helper()
	granted, unknown := int64(0), int64(0)
	counted := s.countsByShard(table, prefix)
	sum := int64(0)
	for shard := range testShards {
		granted += l.Granted[shard]
		unknown += l.Unknown[shard]
		sum += counted[shard]
		if lost[shard] {
			continue
		}
		if counted[shard] < l.Granted[shard] || counted[shard] > l.Granted[shard]+l.Unknown[shard] {
			t.Errorf("shard %d counted %d, want %d to %d", shard, counted[shard], l.Granted[shard],
				l.Granted[shard]+l.Unknown[shard])
		}
	}
	t.Logf("%d requests: granted %d, failed %d, counted %d", l.Requests, granted, unknown, sum)
}

// keyInShard returns a key in a shard.
func keyInShard(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in ", i); store.ShardOf(key, testShards) == shard {
			return key
		}
	}
}
