package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// keyServer counts the requests for each key, and holds up the one numbered
// slow.
func keyServer(t *testing.T, slow int, delay time.Duration) (address string, seen func() map[string]int) {
	t.Helper()
	var mu sync.Mutex
	n, counts := 0, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		held := n == slow
		counts[r.Header.Get(keyHeader)]++
		mu.Unlock()
		if held {
			time.Sleep(delay)
			w.WriteHeader(http.StatusTooManyRequests)
		}
		fmt.Fprint(w, "ok")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return counts
	}
}

func TestSteadySendsEachKeyInTurn(t *testing.T) {
	address, seen := keyServer(t, 0, 0)
	s := steady{address: address, connections: 8, first: 5, keys: 100, inTurn: true, requests: 300}
	r, err := s.run()
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent != 300 || r.Other != 0 {
		t.Errorf("%+v", r)
	}
	if n := len(seen()); n != 100 {
		t.Errorf("%d keys, want 100", n)
	}
	for i := 5; i < 105; i++ {
		if n := seen()[string(appendKey(nil, i))]; n != 3 {
			t.Errorf("key %d was sent %d times, want 3", i, n)
		}
	}
}

// TestSteadyCountsFromWhenRequestsAreDue holds up the only connection: what is
// due meanwhile waits, and its wait must show.
func TestSteadyCountsFromWhenRequestsAreDue(t *testing.T) {
	const delay = 200 * time.Millisecond
	address, _ := keyServer(t, 1, delay)
	s := steady{address: address, rate: 1000, connections: 1, keys: 1, seconds: 0.3}
	r, err := s.run()
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent != 300 || r.Other != 1 {
		t.Errorf("%+v; want 300 sent, one answered with another status", r)
	}
	// The first 200 of 300 requests wait 200 ms, 199 ms and so on.
	if wait := delay / 4; r.P50 < microseconds(wait) {
		t.Errorf("p50 is %v µs, must be %v or more: half of the requests waited so long", r.P50, wait)
	}
	if r.Max < microseconds(delay) {
		t.Errorf("max is %v µs", r.Max)
	}
}

func TestSteadyKeepsItsPace(t *testing.T) {
	address, _ := keyServer(t, 0, 0)
	s := steady{address: address, rate: 500, connections: 4, keys: 10, warm: 0.1, seconds: 0.5}
	r, err := s.run()
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent != 300 || r.Seconds < 0.59 {
		t.Errorf("sent %d in %v s, want 300 in no less than 0.6", r.Sent, r.Seconds)
	}
}

func TestSteadyTalksToLoopbackOnly(t *testing.T) {
	for _, address := range []string{"192.0.2.1:80", "[::1]:80", "localhost:80", "127.0.0.1"} {
		s := steady{address: address, connections: 1, keys: 1, requests: 1}
		if _, err := s.run(); err == nil {
			t.Errorf("%s: no error", address)
		}
	}
}

// TestCoreCountsWhatItDoes compares what a load counts with what stands in the
// tables.
func TestCoreCountsWhatItDoes(t *testing.T) {
	for _, c := range []struct {
		name, table string
		load        coreLoad
	}{
		{"group commit", "rate_limit_ephemeral", coreLoad{Stores: 1, Callers: 16, Batch: 1, Keys: 50}},
		{"batches", "rate_limit_ephemeral", coreLoad{Stores: 2, Callers: 1, Batch: 20, Keys: 50}},
		{"bare", "bare", coreLoad{Bare: true, Stores: 2, Callers: 1, Batch: 20, Keys: 50}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.load.DSN = cluster.Open(t)
			if err := execAt(t.Context(), c.load.DSN, ratelimit.TableSQL+bareTable); err != nil {
				t.Fatal(err)
			}
			run, err := startCoreRun(c.load)
			if err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); run.count().Decisions < 500 && run.failure.Load() == nil; {
				if time.Since(began) > 30*time.Second {
					t.Fatal("no 500 decisions within 30 s")
				}
				time.Sleep(time.Millisecond)
			}
			if err := run.end(); err != nil {
				t.Fatal(err)
			}
			o := run.count()
			if o.Statements < 1 || o.Statements > o.Decisions {
				t.Errorf("%d statements for %d decisions", o.Statements, o.Decisions)
			}
			stands, err := queryAt(t.Context(), c.load.DSN, "SELECT sum(count)::bigint FROM "+pgx.Identifier{c.table}.Sanitize())
			if err != nil {
				t.Fatal(err)
			}
			if stands != o.Decisions {
				t.Errorf("counted %d decisions, and %d stand in the table", o.Decisions, stands)
			}
		})
	}
}

// TestCountersCountStatements checks the number that statements a request are
// worked out from.
func TestCountersCountStatements(t *testing.T) {
	d, err := startDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	}()
	dsn, err := d.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := execAt(t.Context(), dsn, ratelimit.TableSQL+bareTable); err != nil {
		t.Fatal(err)
	}
	before, err := d.counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cpu := must(t, d.cpu)
	run, err := startCoreRun(coreLoad{DSN: dsn, Bare: true, Stores: 1, Callers: 1, Batch: 5, Keys: 50})
	if err != nil {
		t.Fatal(err)
	}
	for run.count().Statements < 500 && run.failure.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := run.end(); err != nil {
		t.Fatal(err)
	}
	if after := must(t, d.cpu); after <= cpu {
		t.Errorf("CPU time of the server: %v, then %v", cpu, after)
	}
	after, err := d.counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Autovacuum may write, too.
	wrote := after.transactions - before.transactions
	if n := run.count().Statements; wrote < n || wrote > n+50 {
		t.Errorf("%d transactions have written, %d of them statements of the load", wrote, n)
	}
}

func must[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}
