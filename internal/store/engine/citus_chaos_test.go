package engine_test

import (
	"fmt"
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

// testChaos moves and rebalances shards, adds and drains a worker, and kills a worker and the coordinator,
// while eight proxies count. These rules must hold:
//
//   - While the coordinator is down, at most 1 % of the requests fail.
//   - While a worker is down, the shards of this worker grant nothing, and all other shards grant hits.
//   - Afterwards, all shards grant hits again.
//   - Each shard that was not on the killed worker has counted all granted hits.
func (s *citusDB) testChaos(t *testing.T) {
	ctx := t.Context()
	var load shardLoad
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		db := drivers.All[[]string{"pgxdb", "pgwire"}[i%2]](t, s.DSN()+"&pool_max_conns=4")
		proxy := openStore(t, db, engine.Options{}, nil)
		for range 4 {
			running.Go(func() { load.send(proxy, stop) })
		}
	}
	await.Within(t, time.Minute, "decisions", func() bool { return load.snapshot().Requests > 1000 })
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
	t.Logf("%v left: a worker was added, and has shards", time.Until(until))
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
	t.Logf("%v left: the worker was drained", time.Until(until))
	// Without the coordinator, proxies continue to count.
	if err := s.Coordinator.Kill(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	before := load.snapshot()
	time.Sleep(time.Second)
	after := load.snapshot()
	failures, requests := after.Failed-before.Failed, after.Requests-before.Requests
	if failures > requests/100 || requests == 0 {
		t.Errorf("without the coordinator, %d of %d requests failed, want at most 1 %%", failures, requests)
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
	before = load.snapshot()
	time.Sleep(time.Second)
	after = load.snapshot()
	for shard := range testShards {
		if grants := after.Granted[shard] > before.Granted[shard]; grants == lost[shard] {
			t.Errorf("shard %d grants while worker 2 is down: %v, want %v", shard, grants, !lost[shard])
		}
	}
	if err := s.Workers[2].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v left: the worker is back", time.Until(until))
	moves := 0
	for ; time.Now().Before(until); moves++ {
		shard := moves % testShards
		s.moveShard(shard, (s.workerOf(shard)+1)%3)
	}
	before = load.snapshot()
	await.Within(t, testTimeout, "decisions in all shards again", func() bool {
		after = load.snapshot()
		for shard := range testShards {
			if after.Granted[shard] == before.Granted[shard] {
				return false
			}
		}
		return true
	})
	close(stop)
	running.Wait()
	t.Logf("%d more moves", moves)
	s.checkCounts(t, load.snapshot(), lost)
}
