package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// shardTimeout is the timeout of a request in tests that move shards.
const shardTimeout = 250 * time.Millisecond

// shardCounts has the number of requests, and the results of requests by shard.
type shardCounts struct {
	Requests, Failed       int64
	Granted, FailedByShard [testShards]int64
}

// shardLoad counts the results of all callers.
type shardLoad struct {
	mu     sync.Mutex
	counts shardCounts
}

// snapshot returns a copy of the counts.
func (l *shardLoad) snapshot() shardCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// send takes hits on many keys until stop is closed.
func (l *shardLoad) send(to ratelimit.Store, stop <-chan struct{}) {
	d := make([]ratelimit.Decision, 1)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		h := ratelimit.Hit{Limit: chaosLimit, Key: fmt.Sprint("key ", i%400), Cost: 1}
		err := to.Take(context.Background(), shardTimeout, []ratelimit.Hit{h}, d)
		shard := store.ShardOf(h.Key, testShards)
		l.mu.Lock()
		l.counts.Requests++
		switch {
		case err != nil:
			l.counts.Failed++
			l.counts.FailedByShard[shard]++
		case d[0].Allowed:
			l.counts.Granted[shard]++
		}
		l.mu.Unlock()
		if err != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// checkCounts fails the test unless each shard, except the lost ones, counted at least the granted hits, and
// at most these and the failed requests, because a failed request may have been counted.
func (s *citusDB) checkCounts(t *testing.T, c shardCounts, lost map[int]bool) {
	t.Helper()
	counted := s.countsByShard("rate_limit_ephemeral", chaosLimit.Prefix)
	for shard := range testShards {
		n, granted := counted[shard], c.Granted[shard]
		if !lost[shard] && (n < granted || n > granted+c.FailedByShard[shard]) {
			t.Errorf("shard %d counted %d, want %d to %d", shard, n, granted, granted+c.FailedByShard[shard])
		}
	}
	t.Logf("%d requests, %d failed", c.Requests, c.Failed)
}

// keyInShard returns a key in a shard.
func keyInShard(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in ", i); store.ShardOf(key, testShards) == shard {
			return key
		}
	}
}
