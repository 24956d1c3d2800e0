package main

import (
	"net/http"
	"slices"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// peers returns the benchmark rows that measure other limiters at 64 connections. Each row gets the limit.
func peers(limit string) (rows []*row) {
	for _, r := range allRows() {
		if r.limit != nil && !r.isOwnLimit() && r.load.connections == usualLoad.connections {
			r.limit = &limitSpec{peer: r.limit.peer, limit: limit}
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

// With the configuration of the benchmark, each of the four other limiters admits three requests of a key and
// refuses further ones, but not those of another key. Otherwise the benchmark could measure a limiter that
// looks fast because it does not count.
func TestPeersCountWithConfigurationOfBenchmark(t *testing.T) {
	b := startBench(t)
	rows := peers("3 1h")
	if len(rows) != 4 {
		t.Errorf("peers returned %d rows, want 4", len(rows))
	}
	for _, r := range rows {
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
	}
}
