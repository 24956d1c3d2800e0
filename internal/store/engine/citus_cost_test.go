package engine_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// citusPairs is for TestCitusCost.
var citusPairs = flag.Int("citus-pairs", 1, "how many pairs of measurements TestCitusCost makes")

// TestCitusCost measures what a hit costs the server of a shard, beside a server
// without Citus: hits per processor second of all its processes, in pairs.
func TestCitusCost(t *testing.T) {
	s := newSpread(t, 1)
	worker := s.Workers[0]
	single := cluster.Private(t, cluster.Options{BinDir: *citusBin, Config: map[string]string{"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "wal_level": "logical"}})
	o := engine.Options{CleanupProbability: -1, NoRefusals: true}
	plain := newStore(t, drivers.All["pgxdb"](t, single.DSN("postgres")), o)
	root, opened := openShards(t, drivers.All["pgxdb"](t, s.DSN()), o)
	warm := hitOn("warm", 1<<40, false)
	takeOne(t, plain, warm)
	takeOne(t, root, warm)
	shard := (*opened)[0]
	var limits []*ratelimit.Limit
	for i := range 3 {
		limits = append(limits, &ratelimit.Limit{Prefix: fmt.Sprint("cost", i), Events: 1 << 40, Window: time.Hour})
	}
	for _, c := range []struct{ size, limits int }{{6, 1}, {25, 1}, {100, 1}, {25, 3}, {100, 3}} {
		measure := func(store *engine.Store, server *cluster.Cluster) float64 {
			batches := 15000 / c.size / c.limits
			from := processorTime(t, server.DataDir())
			for b := range batches {
				var calls []*batch.Call
				for i := range c.size {
					call := batch.NewCall()
					var hits []ratelimit.Hit
					for l := range c.limits {
						hits = append(hits, ratelimit.Hit{Limit: limits[l], Key: fmt.Sprint("key ", (b*c.size+i)%4000), Cost: 1})
					}
					call.Prepare(hits, false)
					calls = append(calls, call)
				}
				store.DecideBatch(calls)
				for _, call := range calls {
					if call.Err != nil || len(call.Decisions) != c.limits || !call.Decisions[0].Allowed {
						t.Fatal(call.Err, call.Decisions)
					}
				}
			}
			return float64(batches*c.size) / (processorTime(t, server.DataDir()) - from)
		}
		measure(plain, single)
		measure(shard, worker)
		var ratios []float64
		for pair := range *citusPairs {
			var a, b float64
			if pair%2 == 0 {
				a, b = measure(plain, single), measure(shard, worker)
			} else {
				b, a = measure(shard, worker), measure(plain, single)
			}
			ratios = append(ratios, b/a)
		}
		slices.Sort(ratios)
		t.Logf("%d requests of %d limits in a batch: %.2f of plain Postgres's hits per processor second (%.2f to %.2f)", c.size, c.limits, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	}
}

// processorTime is what the processes of a server have used, in seconds.
func processorTime(t testing.TB, dataDir string) float64 {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	postmaster := strings.SplitN(string(file), "\n", 2)[0]
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		at := strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[at+1:]))
		own := strings.HasPrefix(string(text), postmaster+" ")
		if !own && fields[1] != postmaster {
			continue
		}
		for i := 11; i < 15; i++ { // utime, stime, and those of children that have ended
			n, _ := strconv.Atoi(fields[i])
			ticks += n
		}
	}
	return float64(ticks) / 100
}
