package engine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// asShardsWorker is the environment variable that makes this test binary one of the processes of testChaos: the driver and the DSN.
const asShardsWorker = "PG_RATELIMIT_TEST_SHARDS_WORKER"

var chaosLimit = &ratelimit.Limit{Prefix: "chaos", Algorithm: ratelimit.FixedWindow, Events: 1 << 40, Window: 24 * time.Hour}

// runShardsWorker is a process: it prints what was granted so far, until its input ends.
func runShardsWorker(text string) error {
	driver, dsn, _ := strings.Cut(text, " ")
	var db pgdb.DB
	var err error
	if driver == "pgxdb" {
		db, err = pgxdb.Open(dsn, pgxdb.Options{MaxConns: 4})
	} else {
		db, err = pgwire.Open(dsn, pgwire.Options{MaxConns: 4})
	}
	if err != nil {
		return err
	}
	chain, err := store.Open(db, engine.Options{}, nil)
	if err != nil {
		return err
	}
	var l shardsLoad
	stop := make(chan struct{})
	all := l.run(chain, chaosLimit, 4, 400, stop)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	out := json.NewEncoder(os.Stdout)
	for running := true; running; {
		select {
		case <-ended:
			running = false
			close(stop)
			all.Wait()
			chain.Close()
		case <-time.After(100 * time.Millisecond):
		}
		if err := out.Encode(l.copy()); err != nil {
			return err
		}
	}
	return nil
}

// shardsWorker is a process that runs.
type shardsWorker struct {
	cmd   *exec.Cmd
	input io.Closer
	ended chan struct{}

	mu   sync.Mutex
	last shardsLoad
}

func startShardsWorker(t *testing.T, driver, dsn string) *shardsWorker {
	t.Helper()
	w := &shardsWorker{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), asShardsWorker+"="+driver+" "+dsn)
	w.cmd.Stderr = os.Stderr
	input, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.input = input
	output, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	go func() {
		defer close(w.ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			var l shardsLoad
			if json.Unmarshal(lines.Bytes(), &l) == nil {
				w.mu.Lock()
				w.last = l
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// totalOf is what all processes have counted so far.
func totalOf(all []*shardsWorker) *shardsLoad {
	sum := &shardsLoad{}
	for _, w := range all {
		w.mu.Lock()
		sum.Requests += w.last.Requests
		for shard := range testShards {
			sum.Granted[shard] += w.last.Granted[shard]
			sum.Unknown[shard] += w.last.Unknown[shard]
		}
		w.mu.Unlock()
	}
	return sum
}

func unknownOf(l *shardsLoad) int64 {
	n := int64(0)
	for shard := range testShards {
		n += l.Unknown[shard]
	}
	return n
}

// testChaos has moves, a rebalance, an added and a drained worker, and a killed worker and coordinator, while eight
// processes count. All that was granted is counted in each shard that was not on the killed worker.
func (s *spread) testChaos(t *testing.T) {
	ctx := context.Background()
	var all []*shardsWorker
	for i := range 8 {
		all = append(all, startShardsWorker(t, []string{"pgxdb", "pgwire"}[i%2], s.DSN()))
	}
	await.Within(t, time.Minute, "decisions of all processes", func() bool {
		for _, w := range all {
			w.mu.Lock()
			started := w.last.Requests > 100
			w.mu.Unlock()
			if !started {
				return false
			}
		}
		return true
	})
	until := time.Now().Add(*citusLoad)
	lost := map[int]bool{}
	added, err := s.Add(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range []int{0, 1} {
		s.move(shard, added)
	}
	cluster.Execute(t, s.DSN(), "SELECT rebalance_table_shards(shard_transfer_mode := 'block_writes')")
	t.Log("a worker was added and has shards: ", time.Until(until))
	// Drain it, and remove it.
	for shard := range testShards {
		if s.where(shard) == added {
			s.move(shard, shard%3)
		}
	}
	cluster.Execute(t, s.DSN(), fmt.Sprintf("SELECT citus_remove_node('127.0.0.1', %d)", s.Workers[added].Port()))
	if err := s.Workers[added].Kill(); err != nil {
		t.Error(err)
	}
	t.Log("the worker was drained: ", time.Until(until))
	// Without the coordinator, counts and routes go on.
	if err := s.Coordinator.Kill(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	before := totalOf(all)
	time.Sleep(time.Second)
	after := totalOf(all)
	if failures := unknownOf(after) - unknownOf(before); failures > (after.Requests-before.Requests)/100 || after.Requests == before.Requests {
		t.Errorf("%d of %d requests had no answer without the coordinator", failures, after.Requests-before.Requests)
	}
	if err := s.Coordinator.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	for shard := range testShards {
		lost[shard] = s.where(shard) == 2
	}
	if err := s.Workers[2].Kill(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	before = totalOf(all)
	time.Sleep(time.Second)
	after = totalOf(all)
	for shard := range testShards {
		if goes := after.Granted[shard] > before.Granted[shard]; goes == lost[shard] {
			t.Errorf("shard %d: granted while worker 2 is down: %v, of worker 2: %v", shard, goes, lost[shard])
		}
	}
	if err := s.Workers[2].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log("the worker is back: ", time.Until(until))
	moves := 0
	for ; time.Now().Before(until); moves++ {
		shard := moves % testShards
		s.move(shard, (s.where(shard)+1)%3)
	}
	before = totalOf(all)
	await.Within(t, longTime, "decisions in all shards again", func() bool {
		after = totalOf(all)
		for shard := range testShards {
			if after.Granted[shard] == before.Granted[shard] {
				return false
			}
		}
		return true
	})
	for _, w := range all {
		_ = w.input.Close()
	}
	for _, w := range all {
		<-w.ended
		if err := w.cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d more moves; %d shards were on the worker that was killed", moves, len(lost)-countFalse(lost))
	s.compare(t, totalOf(all), "rate_limit_ephemeral", chaosLimit.Prefix, lost)
}

func countFalse(all map[int]bool) int {
	n := 0
	for _, is := range all {
		if !is {
			n++
		}
	}
	return n
}
