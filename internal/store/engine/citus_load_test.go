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

// shardTimeout is for one request of the tests that move shards.
const shardTimeout = 250 * time.Millisecond

// shardsLoad takes from many keys until stop is closed, and counts by the shard.
type shardsLoad struct {
	Granted, Unknown [testShards]int64 // atomic; Unknown are those without an answer
	Requests         int64
}

func (l *shardsLoad) run(to ratelimit.Store, limit *ratelimit.Limit, callers, keys int,
	stop <-chan struct{}) *sync.WaitGroup {
	var all sync.WaitGroup
	for c := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
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
	return &all
}

// copy is the counts as of now.
func (l *shardsLoad) copy() *shardsLoad {
	c := &shardsLoad{Requests: atomic.LoadInt64(&l.Requests)}
	for shard := range testShards {
		c.Granted[shard] = atomic.LoadInt64(&l.Granted[shard])
		c.Unknown[shard] = atomic.LoadInt64(&l.Unknown[shard])
	}
	return c
}

// compare compares what was granted with what was counted. A request without an answer may have counted.
func (s *spread) compare(t *testing.T, l *shardsLoad, table, prefix string, lost map[int]bool) {
	t.Helper()
	granted, unknown := int64(0), int64(0)
	counted := s.counted(table, prefix)
	sum := int64(0)
	for shard := range testShards {
		granted += l.Granted[shard]
		unknown += l.Unknown[shard]
		sum += counted[shard]
		if lost[shard] {
			continue
		}
		if counted[shard] < l.Granted[shard] || counted[shard] > l.Granted[shard]+l.Unknown[shard] {
			t.Errorf("shard %d: granted %d, without an answer %d, counted %d", shard, l.Granted[shard],
				l.Unknown[shard], counted[shard])
		}
	}
	t.Logf("%d requests: granted %d, without an answer %d, counted %d", l.Requests, granted, unknown, sum)
}

// keyIn is a key of a shard.
func keyIn(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in ", i); store.ShardOf(key, testShards) == shard {
			return key
		}
	}
}
