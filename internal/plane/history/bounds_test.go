package history_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Users beyond the bound of a minute count as (other). The sums of each limit stay correct, and OnError
// reports the number of these requests. The bound applies to a whole minute, even if the cells of the minute
// are written several times.
func TestFloodOfUsersBecomesOther(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	const bound, users, cost, settled = 10000, 12000, 2, 3
	for i := 0; i < users; i++ {
		history.Add(w, &history.Record{Time: baseTime, User: fmt.Sprint("u", i), Outcome: outcome.Admitted,
			Prefix: fmt.Sprint("p", i%2), KeyID: int64(i), Endpoint: fmt.Sprint("e", i%3),
			Charged: hits(fmt.Sprint("p", i%2), cost)})
		if i == 5000 {
			flush(t, w)
		}
	}
	history.Add(w, &history.Record{Time: baseTime, User: "u1", Prefix: "p1", KeyID: 1, Endpoint: "e1",
		Outcome: outcome.Admitted})
	history.SetCost(w, &history.RealCost{Time: baseTime, User: "u11999", Prefix: "p1", Units: settled})
	history.Add(w, &history.Record{Time: baseTime.Add(time.Minute), User: "u11999",
		Outcome: outcome.Admitted})
	flush(t, w)
	// Of each prefix, half of the users beyond the bound are in one row of (other). u1 has a second request.
	const other = (users - bound) / 2
	want := fmt.Sprintf("30 %d %d 2 p0 0 (other) %d %d, p1 0 (other) %d %d\n31 1 1 - -",
		bound+2, users+1, other, other*cost, other, other*cost+settled)
	// Columns: the minute, its rows, its requests, the requests of u1, and the rows of (other).
	check.Equal(t, "minutes", d.Query(`SELECT to_char(time, 'MI'), count(*), sum(requests)::bigint,
		max(requests) FILTER (WHERE user_id = 'u1'),
		string_agg(concat_ws(' ', prefix, key_id, endpoint, requests, settled), ', ' ORDER BY prefix)
			FILTER (WHERE user_id = '(other)')
		FROM rate_limit_metrics_minute GROUP BY 1 ORDER BY 1`), want)
	check.Equal(t, "days",
		d.Query("SELECT sum(requests)::bigint, sum(settled)::bigint FROM rate_limit_metrics_day"),
		fmt.Sprint(users+2, " ", users*cost+settled))
	const report = "since the start, the metrics have 2000 requests under the user and endpoint (other), " +
		"because a minute had more than 10000 combinations"
	if reports := d.reportedErrors(); len(reports) != 1 || !strings.HasPrefix(reports[0], report) {
		t.Errorf("reported errors: got %q, want one that starts with %q", reports, report)
	}
}

// A sum of costs that exceeds a bigint becomes the largest bigint.
func TestSumsOfCostsSaturate(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	for round := 0; round < 4; round++ {
		for _, kind := range []outcome.Kind{outcome.Admitted, outcome.Failed} {
			for i := 0; i < 3; i++ {
				r := history.Record{Time: baseTime.Add(time.Duration(round/2) * time.Minute),
					Outcome: kind, User: "anna", Prefix: "p", Cost: 1 << 62, Charged: hits("p", 1<<62)}
				for _, i := range history.AddBatch(w, []history.Record{r}) {
					t.Errorf("AddBatch: got record %d skipped, want it added", i)
				}
				history.SetCost(w, &history.RealCost{Time: r.Time, User: "anna", Prefix: "p", Units: 1 << 62})
			}
		}
		flush(t, w)
	}
	check.Equal(t, "metrics", d.Query("SELECT granularity, count(*), min(settled), "+
		"sum(requests)::bigint FROM rate_limit_metrics GROUP BY 1 ORDER BY 1"),
		"day 1 9223372036854775807 24\n"+
			"hour 1 9223372036854775807 24\n"+
			"minute 2 9223372036854775807 24")
	if stats := w.Stats(); stats.DroppedMetrics != 0 {
		t.Errorf("Stats: got %+v, want DroppedMetrics 0", stats)
	}
}

// During an outage of any length, memory is bounded, for all requests that clients may send. First each
// record has a time of its own, and so a row and a cell. Then all records are of one second, and are refusals
// that differ.
func TestMemoryIsBoundedWhileTheDatabaseIsDown(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it fills the memory of a proxy")
	}
	key, path := strings.Repeat("k", 500), strings.Repeat("ä", 500)
	const records = 400000
	for _, step := range []time.Duration{700 * time.Millisecond, 0} {
		d := &testDB{t: t}
		w := d.newWriterOn(fakedb.Down, history.Settings{DisableMigration: true})
		conformance.CheckHeapGrowth(t, 100<<20, w, func() {
			for i := range records {
				history.Add(w, &history.Record{
					Time: baseTime.Add(time.Duration(i) * step), Host: fmt.Sprint("h", i),
					User: fmt.Sprint("user ", i), Key: fmt.Sprint(key, i), Path: path,
					Duration: time.Duration(rand.Int63n(int64(time.Minute))),
					Outcome:  outcome.Kind(i % 2), Audit: auditAll,
				})
				if i%50000 == 0 {
					_ = w.Flush(context.Background())
				}
			}
		})
		stats := w.Stats()
		if stats.Dropped+stats.Pending != records || stats.Pending > history.MaxPending {
			t.Errorf("step %v: Stats: got %+v, want %d dropped or pending, and at most %d pending", step,
				stats, records, history.MaxPending)
		}
		// Memory has 50,000 waiting cells, and up to 1,000 more in the parcel that is being sent.
		if kept := records - stats.DroppedMetrics; step > 0 && (kept < 50000 || kept > 51000) {
			t.Errorf("requests that are not in DroppedMetrics: got %d, want 50000 to 51000", kept)
		}
		w.Close()
		if stats := w.Stats(); stats.Pending != 0 || stats.Dropped != records {
			t.Errorf("Stats after Close: got %+v, want 0 pending and %d dropped", stats, records)
		}
	}
}

// While the database hangs, Close returns within a bounded time, counts all records as dropped, and leaves no
// goroutine. Later calls of Flush fail with ErrClosed.
func TestCloseReturnsWhileDatabaseHangs(t *testing.T) {
	synctest.Test(t, closeWhileDatabaseHangs)
}

func closeWhileDatabaseHangs(t *testing.T) {
	w := history.New(fakedb.Silent, history.Settings{})
	w.Prepare()
	for i := 0; i < 3000; i++ {
		history.Add(w, &history.Record{Time: baseTime, User: "anna", Audit: auditAll})
	}
	start := time.Now()
	w.Close()
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("time of Close: got %v, want at most 15 s", took)
	}
	w.Close()
	history.Add(w, &history.Record{Time: baseTime, User: "anna", Audit: auditAll})
	got, want := w.Stats(), history.Stats{Dropped: 3001, DroppedMetrics: 3001}
	check.Equal(t, "Stats after Close:", got, want)
	if err := w.Flush(context.Background()); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("Flush after Close: got %v, want ErrClosed", err)
	}
	w.Prepare()
}
