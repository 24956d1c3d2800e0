package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// correctedRows adds requests to the ledger, each charged for 10 units on the counter k.
const correctedRows = `INSERT INTO rate_limit_ledger (day, id, time, user_id, model, input, money, charges)
	SELECT now() AT TIME ZONE 'UTC', gen_random_uuid(), now(), 'u', 'm', 1, 10, '[{"prefix": "b", "key": "k",
		"unit": "money", "units": 10, "durable": true}]' FROM generate_series(1, %d)`

// correctChunk corrects 500 requests, as prices correct does, from 10 units to 12.000000007.
const correctChunk = `SELECT rate_limit_correct(jsonb_agg(jsonb_build_object('id', b.id, 'time', b.time,
		'lines', '[{"billionths": 12007}]'::jsonb)), 'a test')
	FROM (SELECT id, time FROM rate_limit_ledger WHERE kind = 'charge' ORDER BY id OFFSET %d LIMIT 500) b`

// While 100,000 requests of a hot counter are corrected, decisions on it go on, and then the counter has what
// the ledger has. The log has the times of 200 decisions a second.
func TestCorrectionHoldsUpNoDecisions(t *testing.T) {
	requests := 100_000
	if testing.Short() {
		requests = 2000
	}
	s := newTestDB(t)
	s.exec(schema.File)
	s.exec("SELECT rate_limit_ledger_upkeep()")
	store := s.openEngine(engine.Options{CleanupProbability: -1})
	hit := hitOn("b", 1<<40, true)
	hit.Cost = int64(10 * requests)
	takeOne(t, store, hit)
	s.exec(fmt.Sprintf(correctedRows, requests))
	corrected, start := make(chan error, 1), time.Now()
	go func() {
		var err error
		for n := 0; n < requests && err == nil; n += 500 {
			err = cluster.Exec(t.Context(), s.conn, fmt.Sprintf(correctChunk, n))
		}
		corrected <- err
	}()
	hit.Cost = 1
	var decided int64
	measure := func(what string, isOver func() bool) {
		var times []time.Duration
		for ticks := time.NewTicker(5 * time.Millisecond); !isOver(); <-ticks.C {
			start := time.Now()
			takeOne(t, store, hit)
			times = append(times, time.Since(start))
		}
		decided += int64(len(times))
		slices.Sort(times)
		t.Logf("%s: %d decisions, median %v, p99 %v, longest %v", what, len(times), times[len(times)/2],
			times[len(times)*99/100], times[len(times)-1])
	}
	measure("while requests are corrected", func() bool {
		select {
		case err := <-corrected:
			check.Equal(t, "the error of the correction", err, nil)
			t.Logf("%d requests are corrected in %v", requests, time.Since(start))
			return true
		default:
			return false
		}
	})
	end := time.Now().Add(time.Second)
	measure("after it", func() bool { return time.Now().After(end) })
	check.Equal(t, "the counter", s.queryText(`SELECT count * 1000 + coalesce(remainder, 0)
		FROM rate_limit_durable`), fmt.Sprint(int64(requests)*12007+decided*1000))
}
