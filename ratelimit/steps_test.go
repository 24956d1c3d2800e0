package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// openSchedules opens a store with its tables, and returns prefixes that no
// schedule before has used.
func openSchedules(t *testing.T) (store *ratelimit.Postgres, prefix func(string) string) {
	store, _ = openPostgres(t, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	createTables(t, store)
	n := 0
	return store, func(name string) string {
		n++
		return fmt.Sprint(name, n)
	}
}

// createTables makes the tables before a test's first decision would.
func createTables(t *testing.T, store *ratelimit.Postgres) {
	t.Helper()
	limit := &ratelimit.Limit{Prefix: "create", Events: 1, Window: time.Second}
	takeOne(t, store, ratelimit.Hit{Limit: limit})
}

// drawRequest draws a request of one hit, often on a key that was hit before.
func drawRequest(t *rapid.T, limits []*ratelimit.Limit) *ratelimit.Request {
	l := limits[rapid.IntRange(0, len(limits)-1).Draw(t, "limit")]
	h := ratelimit.Hit{Limit: l, Key: rapid.SampledFrom([]string{"k", "l", "", "sha256:k", "\x00"}).Draw(t, "key"),
		Cost: rapid.OneOf(rapid.Int64Range(-3, 8), rapid.Int64Range(1, l.Capacity()), rapid.Int64Range(-l.Capacity(), -1)).Draw(t, "cost")}
	r := &ratelimit.Request{}
	switch rapid.IntRange(0, 19).Draw(t, "what") {
	case 0:
		r.Reset = true
	case 1, 2:
		h.Peek = true
	case 3, 4:
		h.Secret = true
	}
	r.Hits = []ratelimit.Hit{h}
	return r
}

// drawClock moves a clock: forwards, often to where a window turns, and
// backwards by seconds.
func drawClock(t *rapid.T, c *clock, l *ratelimit.Limit) {
	w := span(l)
	c.now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-5*second, 5*second), rapid.Int64Range(0, 3*w),
		rapid.SampledFrom([]int64{1, -1, w, w - 1, w + 1, 2 * w, 2*w - 1})).Draw(t, "advance")
	if c.now < 0 || c.now > 5_000_000_000*second {
		c.now = 1_700_000_000 * second
	}
}

// failer is what *testing.T and *rapid.T have in common.
type failer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// sequentially runs a request against a Memory store.
func sequentially(t failer, memory *ratelimit.Memory, r *ratelimit.Request) []ratelimit.Decision {
	var err error
	var decisions []ratelimit.Decision
	if r.Reset {
		err = memory.Reset(context.Background(), time.Second, r.Hits)
	} else {
		decisions = make([]ratelimit.Decision, len(r.Hits))
		err = memory.Take(context.Background(), time.Second, r.Hits, decisions)
	}
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

// seen is a row as one side has it.
type seen struct {
	row   ratelimit.Row
	found bool
}

// equals compares rows; there may be none where it would say nothing.
func (s seen) equals(other seen) bool {
	if s.found != other.found {
		return (!s.found || s.row.Blank()) && (!other.found || other.row.Blank())
	}
	return s.row == other.row
}

// TestStepsEqual runs random schedules, hit by hit, against the SQL statements
// and against the Go steps: every decision and every row must be equal.
func TestStepsEqual(t *testing.T) {
	store, prefix := openSchedules(t)
	check(t, 10000, func(t *rapid.T) {
		c := &clock{now: 1_700_000_000 * second}
		memory := ratelimit.NewMemory(0, c.read)
		memory.KeepExpired()
		limits := []*ratelimit.Limit{drawLimit(t, prefix("a")), drawLimit(t, prefix("b"))}
		if rapid.Bool().Draw(t, "the limits share a prefix") {
			limits[1].Prefix, limits[1].Durable = limits[0].Prefix, limits[0].Durable
		}
		n := rapid.IntRange(1, 12).Draw(t, "steps")
		batches, wants := make([]ratelimit.Batch, n), make([][]ratelimit.Decision, n)
		wantRows, gotRows := make([]seen, n), make([]seen, n)
		for i := range batches {
			r := drawRequest(t, limits)
			if h := &r.Hits[0]; h.Limit.Algorithm == ratelimit.SlidingLog && limits[0].Prefix == limits[1].Prefix && h.Cost < 0 {
				h.Cost = -h.Cost // Memory drops an empty log, and with it what the other limit reads
			}
			drawClock(t, c, r.Hits[0].Limit)
			batches[i] = ratelimit.Batch{Now: c.now, Requests: []*ratelimit.Request{r}}
			wants[i] = sequentially(t, memory, r)
			wantRows[i].row, wantRows[i].found = memory.RowOf(r.Hits[0])
		}
		store.RunSchedule(batches, func(i int) []*ratelimit.Statement {
			return []*ratelimit.Statement{ratelimit.RowStatement(batches[i].Requests[0].Hits[0], &gotRows[i].row, &gotRows[i].found)}
		})
		for i, b := range batches {
			r := b.Requests[0]
			compare(t, fmt.Sprintf("step %d", i), b.Now, r, wants[i])
			if !gotRows[i].equals(wantRows[i]) {
				t.Fatalf("step %d: %+v of %+v at %d leaves\n  Go %+v\n SQL %+v", i, r.Hits[0], *r.Hits[0].Limit, b.Now, wantRows[i], gotRows[i])
			}
		}
	})
}

// compare compares what Postgres said to a request with what Go says.
func compare(t failer, what string, now int64, r *ratelimit.Request, want []ratelimit.Decision) {
	if r.Err != nil {
		t.Fatalf("%s: %+v of %+v at %d: %v", what, r.Hits[0], *r.Hits[0].Limit, now, r.Err)
	}
	if len(r.Decisions) != len(want) {
		t.Fatalf("%s: %d decisions, want %d", what, len(r.Decisions), len(want))
	}
	for i := range want {
		want[i].Source = r.Decisions[i].Source
		if want[i] != r.Decisions[i] {
			t.Fatalf("%s: %+v of %+v at %d:\n  Go %+v\n SQL %+v", what, r.Hits[i], *r.Hits[i].Limit, now, want[i], r.Decisions[i])
		}
	}
}

// TestBatchIsSequential decides random requests of one hit in one batch, and one
// after the other in memory: merging and waves must not change an answer.
func TestBatchIsSequential(t *testing.T) {
	store, prefix := openSchedules(t)
	check(t, 2000, func(t *rapid.T) {
		c := &clock{now: 1_700_000_000 * second}
		memory := ratelimit.NewMemory(0, c.read)
		memory.KeepExpired()
		limits := []*ratelimit.Limit{drawLimit(t, prefix("a")), drawLimit(t, prefix("b"))}
		if rapid.Bool().Draw(t, "two limits on a row") {
			limits[1].Prefix, limits[1].Durable = limits[0].Prefix, limits[0].Durable
		}
		batches := make([]ratelimit.Batch, rapid.IntRange(1, 3).Draw(t, "batches"))
		var wants [][]ratelimit.Decision
		wantRows, gotRows := map[string]seen{}, map[string]*seen{}
		for i := range batches {
			drawClock(t, c, limits[0])
			batches[i].Now = c.now
			for n := rapid.IntRange(1, 20).Draw(t, "requests"); n > 0; n-- {
				r := drawRequest(t, limits)
				r.Hits[0].Cost %= 4 // so that many are equal
				batches[i].Requests = append(batches[i].Requests, r)
				wants = append(wants, sequentially(t, memory, r))
			}
		}
		store.RunSchedule(batches, func(i int) []*ratelimit.Statement {
			var all []*ratelimit.Statement
			for _, r := range batches[i].Requests {
				name := fmt.Sprint(r.Hits[0].Limit.Prefix, r.Hits[0].Limit.Durable, r.Hits[0].Secret, r.Hits[0].Key)
				if i == len(batches)-1 && gotRows[name] == nil {
					gotRows[name] = &seen{}
					all = append(all, ratelimit.RowStatement(r.Hits[0], &gotRows[name].row, &gotRows[name].found))
					row, found := memory.RowOf(r.Hits[0])
					wantRows[name] = seen{row, found}
				}
			}
			return all
		})
		at := 0
		for i, b := range batches {
			for j, r := range b.Requests {
				want := wants[at]
				at++
				// Equal hits are decided at once: an early one sees the reset
				// that all of them leave.
				if len(want) == 1 && want[0].Allowed && len(r.Decisions) == 1 {
					want[0].Reset = r.Decisions[0].Reset
				}
				compare(t, fmt.Sprintf("batch %d, request %d of %d", i, j, len(b.Requests)), b.Now, r, want)
			}
		}
		for name, want := range wantRows {
			got := *gotRows[name]
			want.row.Expires, got.row.Expires = 0, 0 // a bucket's grid depends on the steps
			if !got.equals(want) {
				t.Fatalf("%s has the row\n  one by one %+v\n    a batch %+v", name, want, got)
			}
		}
	})
}
