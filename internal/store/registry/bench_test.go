package registry

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// BenchmarkRegistry measures the server's work for 200 proxies in a second: 200 counts, and a third as many
// writes.
func BenchmarkRegistry(b *testing.B) {
	const proxies = 200
	dsn := cluster.Open(b, schema.Counters)
	db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	now := time.Now()
	var nodes []*Node
	for i := range proxies {
		n := Join(fmt.Sprint("proxy", i), dsn, "v1", "")
		for limit := range maxBusiest {
			*n.Leased(fmt.Sprint("limit ", limit)) = 1e9
		}
		n.SetApplied("1:1:", "1", []string{strings.Repeat("p", maxProblems)})
		n.writtenAt = now.Add(-time.Duration(i%3) * time.Second)
		nodes = append(nodes, n)
	}
	second := func() {
		now = now.Add(time.Second)
		for _, n := range nodes {
			if _, err := n.Poll(b.Context(), db, true, now); err != nil {
				b.Fatal(err)
			}
		}
	}
	for range 3 {
		second()
	}
	if n := cluster.Query[int64](b, dsn, "SELECT count(*) FROM rate_limit_nodes"); n != proxies {
		b.Fatalf("rate_limit_nodes has %d rows, want %d", n, proxies)
	}
	wal := func() int64 {
		return cluster.Query[int64](b, dsn, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
	}
	pid := cluster.Query[int32](b, dsn, "SELECT pid FROM pg_stat_activity "+
		"WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%rate_limit_nodes%'")
	before, spent := wal(), cpuTime(b, pid)
	for b.Loop() {
		second()
	}
	seconds := float64(b.N)
	b.ReportMetric(float64(wal()-before)/seconds, "WAL-B/op")
	b.ReportMetric((cpuTime(b, pid)-spent).Seconds()*1000/seconds, "server-ms/op")
}

// cpuTime returns the processor time of a process.
func cpuTime(b *testing.B, pid int32) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Skip(err)
	}
	nanoseconds, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(nanoseconds)
}
