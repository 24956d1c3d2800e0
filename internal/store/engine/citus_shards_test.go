package engine_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// BenchmarkCitusShards measures what a number of shards on two workers costs a proxy. Its callers take hits
// on 10,000 keys.
func BenchmarkCitusShards(b *testing.B) {
	for _, shards := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(shards), func(b *testing.B) {
			s := startCitus(b, 2, shards)
			proxy := openStore(b, drivers.All["pgxdb"](b, s.DSN()), engine.Options{}, nil)
			for _, callers := range []int{64, 512} {
				b.Run(fmt.Sprint(callers, " callers"), func(b *testing.B) { s.measure(b, proxy, callers) })
			}
		})
	}
}

// measure reports what hits cost a proxy.
func (s *citusDB) measure(b *testing.B, proxy *store.Store, callers int) {
	limit := &ratelimit.Limit{Prefix: "many", Algorithm: ratelimit.FixedWindow, Events: 1 << 40,
		Window: 24 * time.Hour}
	var key, sessions atomic.Int64
	b.SetParallelism(callers / runtime.GOMAXPROCS(0))
	takeAll := func(pb *testing.PB) {
		for pb.Next() {
			i := key.Add(1)
			h := ratelimit.Hit{Limit: limit, Key: fmt.Sprint("key ", i%10000), Cost: 1}
			if !takeOne(b, proxy, h).Allowed {
				b.Error("a hit was refused")
			}
			if i == int64(b.N/2+1) {
				sessions.Store(s.sessions())
			}
		}
	}
	before, cpu := proxy.Stats(), s.cpu()
	b.RunParallel(takeAll)
	stats := proxy.Stats()
	stats.Subtract(before)
	n := float64(b.N)
	b.ReportMetric(n/float64(stats[engine.Batches]), "requests/batch")
	b.ReportMetric(float64((s.cpu()-cpu).Microseconds())/n, "CPU-µs/request")
	b.ReportMetric(float64(sessions.Load()), "sessions")
}

// sessions returns the number of sessions that a proxy has on the workers.
func (s *citusDB) sessions() (n int64) {
	for _, w := range s.Workers {
		n += cluster.Query[int64](s.t, w.DSN("limits"), `SELECT count(*) FROM pg_stat_activity WHERE pid <>
			pg_backend_pid() AND backend_type = 'client backend' AND application_name NOT LIKE 'citus%'`)
	}
	return n
}

// cpu returns the CPU time that this process and the workers have used.
func (s *citusDB) cpu() (sum time.Duration) {
	pids := []int{os.Getpid()}
	for _, w := range s.Workers {
		server := cluster.Query[int](s.t, w.DSN("limits"),
			`SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`)
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", server))
		if err != nil {
			s.t.Fatal(err)
		}
		pids = append(pids, server)
		for _, child := range strings.Fields(string(children)) {
			pid, _ := strconv.Atoi(child)
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		// The time of a child that has ended is its parent's.
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, after, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(after); len(fields) > 15 {
			for _, field := range fields[11:15] { // in hundredths of a second
				n, _ := strconv.Atoi(field)
				sum += time.Duration(n) * 10 * time.Millisecond
			}
		}
	}
	return sum
}
