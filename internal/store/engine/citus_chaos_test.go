package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var chaosLimit = &ratelimit.Limit{Prefix: "chaos", Algorithm: ratelimit.FixedWindow, Events: 1 << 40,
	Window: 24 * time.Hour}

// sumLoads returns the sum of the loads' counts so far.
func sumLoads(loads []*shardLoad) *shardLoad {
	sum := &shardLoad{}
	for _, l := range loads {
		now := l.snapshot()
		sum.Requests += now.Requests
		for shard := range testShards {
			sum.Granted[shard] += now.Granted[shard]
			sum.Unknown[shard] += now.Unknown[shard]
		}
	}
	return sum
}

func sumUnknown(l *shardLoad) int64 {
	n := int64(0)
	for shard := range testShards {
		n += l.Unknown[shard]
	}
	return n
}

// testChaos moves and rebalances shards, adds and drains a worker, and kills a worker and the coordinator,
// while eight proxies count. Each shard that was not on the killed worker must have counted all granted hits.
func (s *citusDB) testChaos(t *testing.T) {
	ctx := context.Background()
	var loads []*shardLoad
	var running []*sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		db := drivers.All[[]string{"pgxdb", "pgwire"}[i%2]](t, s.DSN()+"&pool_max_conns=4")
		l := &shardLoad{}
		loads, running = append(loads, l),
			append(running, l.run(openStore(t, db, engine.Options{}, nil), chaosLimit, 4, 400, stop))
	}
	await.Within(t, time.Minute, "decisions of all proxies", func() bool {
		return !slices.ContainsFunc(loads, func(l *shardLoad) bool { return l.snapshot().Requests <= 100 })
	})
	until := time.Now().Add(*citusLoad)
	lost := map[int]bool{}
	added, err := s.Add(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range []int{0, 1} {
		s.moveShard(shard, added)
	}
	cluster.Execute(t, s.DSN(), "SELECT rebalance_table_shards(shard_transfer_mode := 'block_writes')")
	t.Log("a worker was added and has shards: ", time.Until(until))
	// Drain it, and remove it.
	for shard := range testShards {
		if s.workerOf(shard) == added {
			s.moveShard(shard, shard%3)
		}
	}
	cluster.Execute(t, s.DSN(),
		fmt.Sprintf("SELECT citus_remove_node('127.0.0.1', %d)", s.Workers[added].Port()))
	if err := s.Workers[added].Kill(); err != nil {
		t.Error(err)
	}
	t.Log("the worker was drained: ", time.Until(until))
	// Without the coordinator, proxies continue to count.
	if err := s.Coordinator.Kill(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	before := sumLoads(loads)
	time.Sleep(time.Second)
	after := sumLoads(loads)
	if failures := sumUnknown(after) - sumUnknown(before); failures > (after.Requests-before.Requests)/100 ||
		after.Requests == before.Requests {
		t.Errorf("without the coordinator, %d of %d requests failed, want at most 1 %%", failures,
			after.Requests-before.Requests)
	}
	if err := s.Coordinator.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	for shard := range testShards {
		lost[shard] = s.workerOf(shard) == 2
	}
	if err := s.Workers[2].Kill(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	before = sumLoads(loads)
	time.Sleep(time.Second)
	after = sumLoads(loads)
	for shard := range testShards {
		if grants := after.Granted[shard] > before.Granted[shard]; grants == lost[shard] {
			t.Errorf("shard %d grants while worker 2 is down: %v, want %v", shard, grants, !lost[shard])
		}
	}
	if err := s.Workers[2].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log("the worker is back: ", time.Until(until))
	moves := 0
	for ; time.Now().Before(until); moves++ {
		shard := moves % testShards
		s.moveShard(shard, (s.workerOf(shard)+1)%3)
	}
	before = sumLoads(loads)
	await.Within(t, testTimeout, "decisions in all shards again", func() bool {
		after = sumLoads(loads)
		for shard := range testShards {
			if after.Granted[shard] == before.Granted[shard] {
				return false
			}
		}
		return true
	})
	close(stop)
	for _, group := range running {
		group.Wait()
	}
	t.Logf("%d more moves", moves)
	s.checkCounts(t, sumLoads(loads), "rate_limit_ephemeral", chaosLimit.Prefix, lost)
}
