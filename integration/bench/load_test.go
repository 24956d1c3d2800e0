package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
)

// keyServer counts the requests for each key. It answers the first request after
// the delay, with 429 if there is one.
func keyServer(t *testing.T, delay time.Duration) (address string, counts map[string]*atomic.Int64) {
	t.Helper()
	var requests atomic.Int64
	counts = map[string]*atomic.Int64{}
	for n := range 200 {
		counts[keyName(n)] = &atomic.Int64{}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counts[r.Header.Get(keyHeader)].Add(1)
		if requests.Add(1) == 1 && delay > 0 {
			time.Sleep(delay)
			w.WriteHeader(http.StatusTooManyRequests)
		}
		fmt.Fprint(w, "ok")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), counts
}

func TestPacedLoadSendsKeysInTurn(t *testing.T) {
	address, counts := keyServer(t, 0)
	r, err := pacedLoad{address: address, firstKey: 5, keys: 100, requests: 300}.run(t.Context())
	if err != nil || r.refused != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for n := 5; n < 105; n++ {
		if sent := counts[keyName(n)].Load(); sent != 3 {
			t.Errorf("key %d was sent %d times, want 3", n, sent)
		}
	}
}

// TestPacedLoadCountsWaiting delays the first answer. The other connections are
// free, so only this request is late.
func TestPacedLoadCountsWaiting(t *testing.T) {
	const delay = 200 * time.Millisecond
	address, _ := keyServer(t, delay)
	began := time.Now()
	r, err := pacedLoad{address: address, rate: 1000, keys: 1, requests: 100}.run(t.Context())
	if err != nil || r.refused != 1 {
		t.Fatalf("%+v, %v, want one request that is not answered with 200", r, err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("the load took %v, so it did not wait for the last answer", took)
	}
	address, _ = keyServer(t, delay)
	r, err = pacedLoad{address: address, rate: 50000, keys: 1, requests: 64}.run(t.Context())
	if err != nil || r.p99 < delay {
		t.Errorf("p99 is %v, %v, want the delay of the one late answer in 64, %v", r.p99, err, delay)
	}
}

func TestPacedLoadKeepsItsPace(t *testing.T) {
	address, _ := keyServer(t, 0)
	began := time.Now()
	if _, err := (pacedLoad{address: address, rate: 500, keys: 10, requests: 300, atRandom: true}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 590*time.Millisecond {
		t.Errorf("300 requests at 500 a second took %v", took)
	}
}

func TestPacedLoadFailsWithoutServer(t *testing.T) {
	if _, err := (pacedLoad{address: "127.0.0.1:1", keys: 1, requests: 1}).run(t.Context()); err == nil {
		t.Error("no error")
	}
}

// TestCoreCountsMatchTables compares what a load counts with what the tables hold.
func TestCoreCountsMatchTables(t *testing.T) {
	for name, c := range map[string]struct {
		sql  string
		load coreLoad
	}{
		"group commit": {"SELECT sum(count) FROM rate_limit_ephemeral", coreLoad{Stores: 1, Callers: 16, Batch: 1, Keys: 50}},
		"batches":      {"SELECT sum(count) FROM rate_limit_ephemeral", coreLoad{Stores: 2, Callers: 1, Batch: 20, Keys: 50}},
		"bare":         {"SELECT sum(count) FROM bare", coreLoad{Bare: true, Stores: 2, Callers: 1, Batch: 20, Keys: 50}},
		"two limits":   {"SELECT sum(count) FROM rate_limit_ephemeral WHERE prefix = 'api'", coreLoad{TwoLimits: true, Refused: 0.5, Stores: 1, Callers: 8, Batch: 1, Keys: 50}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			c.load.DSN = cluster.Open(t)
			query(ctx, c.load.DSN, tableSQL, bareTable)
			useUp(ctx, c.load)
			run := startCore(c.load)
			for deadline := time.Now().Add(30 * time.Second); run.counts().Decisions < 500 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			if err := run.stop(); err != nil {
				t.Fatal(err)
			}
			counts := run.counts()
			if counts.Statements < 1 || counts.Statements > 2*counts.Decisions || counts.CPU <= 0 {
				t.Errorf("%+v", counts)
			}
			if share := counts.Refused / counts.Decisions; share < c.load.Refused-0.2 || share > c.load.Refused+0.2 {
				t.Errorf("%v of the decisions were refusals, want %v", share, c.load.Refused)
			}
			if sum, want := query(ctx, c.load.DSN, c.sql), strconv.FormatFloat(counts.Decisions-counts.Refused, 'f', 0, 64); sum != want {
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
	query(ctx, dsn, tableSQL, bareTable)
	before := d.counters(ctx)
	run := startCore(coreLoad{DSN: dsn, Bare: true, Stores: 1, Callers: 1, Batch: 5, Keys: 50})
	for deadline := time.Now().Add(30 * time.Second); run.counts().Statements < 500 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if err := run.stop(); err != nil {
		t.Fatal(err)
	}
	after := d.counters(ctx)
	// Autovacuum may write, too.
	wrote, want := after.transactions-before.transactions, int64(run.counts().Statements)
	if wrote < want || wrote > want+50 {
		t.Errorf("%d transactions have written, the load ran %d statements", wrote, want)
	}
	if after.cpu <= before.cpu || after.wal < before.wal {
		t.Errorf("before %+v, after %+v", before, after)
	}
}
