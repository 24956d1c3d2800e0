package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// peers returns the benchmark rows that measure other limiters at 64 connections, and our row with as many
// limits on a request. Each row gets the limit.
func peers(limit string) (rows []*row) {
	for _, r := range allRows() {
		if r.limit != nil && (!r.isOwnLimit() || r.limit == exact4) &&
			r.load.connections == usualLoad.connections {
			r.limit = &limitSpec{peer: r.limit.peer, limit: limit, zones: r.limit.zones}
			rows = append(rows, r)
		}
	}
	return rows
}

// startBench returns a bench for starting proxies, and stops the proxies when the test ends.
func startBench(t *testing.T) *bench {
	b := newBench(t.Context())
	b.dir = t.TempDir()
	t.Cleanup(func() { check(b.stopServers()) })
	return b
}

// askRedis sends a command to the Redis of b, and returns the first line of the reply.
func askRedis(b *bench, command string) string {
	conn := must(net.Dial("tcp", b.startRedis()))
	defer conn.Close()
	must(fmt.Fprintf(conn, "%s\r\n", command))
	return strings.TrimSpace(must(bufio.NewReader(conn).ReadString('\n')))
}

// With the configuration of the benchmark, each of the four other limiters admits three requests of a key and
// refuses further ones, but not those of another key. So do redis_rate and pg_ratelimit with four limits, and
// both then have four counters for each key. Otherwise the benchmark could measure a limiter that looks fast
// because it does not count.
func TestPeersCountWithConfigurationOfBenchmark(t *testing.T) {
	b := startBench(t)
	rows := peers("3 1h")
	if len(rows) != 6 {
		t.Errorf("peers returned %d rows, want 6", len(rows))
	}
	b.postgres = []*database{startDatabase(b.ctx)}
	for _, r := range rows {
		askRedis(b, "FLUSHALL")
		var p *proxy
		if !b.attempt(r.name, func() { p = b.startProxy(r, 0) }) {
			t.Fatal(b.complaints)
		}
		var statuses []int
		for _, key := range []string{"a", "a", "a", "b", "a", "a"} {
			response := harness.Ask(t, harness.Get("http://"+p.address+"/", keyHeader, key))
			statuses = append(statuses, response.Status)
		}
		want := []int{200, 200, 200, 200, http.StatusTooManyRequests, http.StatusTooManyRequests}
		if !slices.Equal(statuses, want) {
			t.Errorf("%s: statuses %v, want %v", r.name, statuses, want)
		}
		counters := strings.TrimPrefix(askRedis(b, "DBSIZE"), ":")
		if r.isOwnLimit() {
			counters = query(b.ctx, p.dsn, "SELECT count(*) FROM rate_limit_ephemeral")
		}
		if r.limit.zones != nil && counters != "12" { // start asks with a third key
			t.Errorf("%s: %s counters of three keys, want 12", r.name, counters)
		}
	}
}
