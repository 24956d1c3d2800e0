package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestPacedLoadCountsWaiting has a server that answers one connection after the other, each
// after a delay. A load that waited for answers would not see more than that delay.
func TestPacedLoadCountsWaiting(t *testing.T) {
	const delay = 20 * time.Millisecond
	var keys sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys.Store(r.Header.Get(keyHeader), true)
		time.Sleep(delay)
		if len(r.Header.Get(keyHeader)) < 2 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	var sent atomic.Int64
	p99, wrong := pacedLoad{
		url: server.URL, rate: 100, duration: 2 * time.Second, connections: 1, status: http.StatusOK,
		key: func() string { return strconv.FormatInt(sent.Add(1), 10) },
	}.run(t.Context())
	// In the second second, half of the requests of the first still wait.
	if p99 < 500 || wrong != 9 || sent.Load() != 200 {
		t.Errorf("p99 %.0f ms, %d of %d answers wrong, want more than 500 ms, and 9 of 200", p99, wrong, sent.Load())
	}
	for n := range sent.Load() {
		if _, found := keys.Load(strconv.FormatInt(n+1, 10)); !found {
			t.Errorf("key %d was not sent", n+1)
		}
	}
}

func TestPacedLoadWithoutServerHasNoAnswer(t *testing.T) {
	_, wrong := pacedLoad{url: "http://127.0.0.1:1/", rate: 10, duration: time.Second, connections: 1, status: http.StatusOK, key: func() string { return "k" }}.run(t.Context())
	if wrong != 10 {
		t.Errorf("%d of 10 requests have no answer", wrong)
	}
}

// TestCoreCountsMatchTables compares what a load counts with what the tables hold.
func TestCoreCountsMatchTables(t *testing.T) {
	for name, c := range map[string]struct {
		sql  string
		load *coreLoad
	}{
		"group commit": {"SELECT sum(count) FROM rate_limit_ephemeral", &coreLoad{stores: 1, callers: 16, batch: 1, keys: 50}},
		"batches":      {"SELECT sum(count) FROM rate_limit_ephemeral", &coreLoad{stores: 2, callers: 1, batch: 20, keys: 50}},
		"bare":         {"SELECT sum(count) FROM bare", &coreLoad{bare: true, stores: 2, callers: 1, batch: 20, keys: 50}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			c.load.dsn = cluster.Open(t)
			query(ctx, c.load.dsn, postgres.TableSQL, bareTable)
			run := c.load.start(1)
			for deadline := time.Now().Add(30 * time.Second); run.decisions.Load() < 500 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			if err := run.stop(); err != nil {
				t.Fatal(err)
			}
			if sum, want := query(ctx, c.load.dsn, c.sql), fmt.Sprint(run.decisions.Load()); sum != want {
				t.Errorf("the table holds %s, want %s", sum, want)
			}
		})
	}
}

// TestCountersCountStatements checks the transactions from which statements/request
// is derived, and the server's CPU time.
func TestCountersCountStatements(t *testing.T) {
	ctx := t.Context()
	d := startDatabase(ctx)
	defer func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	}()
	dsn := d.create(ctx)
	query(ctx, dsn, postgres.TableSQL, bareTable)
	before := d.totals(ctx)
	run := (&coreLoad{dsn: dsn, bare: true, stores: 1, callers: 1, batch: 5, keys: 50}).start(1)
	for deadline := time.Now().Add(30 * time.Second); run.decisions.Load() < 10000 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if err := run.stop(); err != nil {
		t.Fatal(err)
	}
	after := d.totals(ctx)
	// Autovacuum may write, too.
	wrote, want := int64(after[statements]-before[statements]), run.decisions.Load()/5
	if wrote < want || wrote > want+50 {
		t.Errorf("%d transactions have written, the load ran %d statements", wrote, want)
	}
	if after[cpuStore] <= before[cpuStore] || after[walBytes] < before[walBytes] {
		t.Errorf("before %+v, after %+v", before, after)
	}
}
