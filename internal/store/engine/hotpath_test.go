package engine_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// batchSize is how many calls a batch has below.
const batchSize = 64

// hotPath is what runs for each decision or batch, and how much each run may allocate. It is
// held by TestAllocations.
var hotPath = []struct {
	name    string
	most    float64 // allocations of a run
	prepare func(t testing.TB) func()
}{
	{"the text of a key", 0, func(testing.TB) func() {
		h := &ratelimit.Hit{Key: "10.1.2.3"}
		return func() { h.StoredKey() }
	}},
	{"a known refusal", 0, func(t testing.TB) func() {
		store := newStore(t, &fakeDB{answer: refuse}, engine.Options{CleanupProbability: -1})
		hits, decisions := fakeHits("k"), make([]ratelimit.Decision, 1)
		return func() {
			if err := store.Take(context.Background(), longTime, hits, decisions); err != nil || decisions[0].Allowed {
				t.Fatal(err, decisions)
			}
		}
	}},
	{"a leased decision", 0, func(t testing.TB) func() {
		store := newStore(t, &fakeDB{}, engine.Options{CleanupProbability: -1})
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1 << 40, Window: time.Hour, Lease: 0.5}
		hits, decisions := []ratelimit.Hit{{Limit: l, Key: "10.1.2.3", Cost: 1}}, make([]ratelimit.Decision, 1)
		run := func() {
			if err := store.Take(context.Background(), longTime, hits, decisions); err != nil || !decisions[0].Allowed {
				t.Fatal(err, decisions)
			}
		}
		for until := time.Now().Add(longTime); store.Stats().Leased < 100000; run() {
			if time.Now().After(until) {
				t.Fatal("no lease")
			}
		}
		return run
	}},
	{"looks, of each definition", 0, func(testing.TB) func() {
		var views [][]*algorithm.View
		for _, a := range conformance.Algorithms() {
			l := &ratelimit.Limit{Prefix: a.String(), Algorithm: a, Events: 1000, Window: time.Minute}
			views = append(views, []*algorithm.View{{Limit: l, Now: 1_700_000_000_000_000, Row: algorithm.Row{
				Count: 3, PrevCount: 4, Start: 1_700_000_000_000_000 - 1, Tokens: 3, HasTokens: true, Refill: 1_700_000_000_000_000,
			}}})
		}
		return func() {
			for _, v := range views {
				algorithm.LookAll(v)
			}
		}
	}},
	{"a batch", 660, func(t testing.TB) func() { return decideAgain(t, false, batchOf(1)) }},
	{"a batch of several limits", 1320, func(t testing.TB) func() { return decideAgain(t, false, batchOf(2)) }},
	{"a refused batch of several limits", 1530, func(t testing.TB) func() { return decideAgain(t, true, batchOf(2)) }},
}

// batchOf returns calls of so many hits each, on different keys.
func batchOf(hits int) []*batch.Call {
	var calls []*batch.Call
	for i := range batchSize {
		var keys []string
		for j := range hits {
			keys = append(keys, fmt.Sprint("10.1.", j, ".", i))
		}
		calls = append(calls, callFor(false, fakeHits(keys...)...))
	}
	return calls
}

// decideAgain decides the same calls each time. The fake database allocates six values for
// each row of a result, and little else.
func decideAgain(t testing.TB, refused bool, calls []*batch.Call) func() {
	answer := admit
	if refused {
		answer = refuse
	}
	store := newStore(t, &fakeDB{answer: answer}, without)
	return func() {
		store.DecideBatch(calls)
		for _, c := range calls {
			if batch.Wait(c); c.Err != nil || allAllowed(c.Decisions) == refused {
				t.Fatal(c.Err, c.Decisions)
			}
		}
	}
}

// TestAllocations fails if a decision allocates more than it did. The least of some measurements counts: the garbage
// collector may empty the pools of buffers during one, and the goroutines of other tests may allocate.
func TestAllocations(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates; make test runs this without it, too")
	}
	for _, f := range hotPath {
		run := f.prepare(t)
		run() // what is allocated once
		least := math.Inf(1)
		for i := 0; i < 10 && least > f.most; i++ {
			least = min(least, testing.AllocsPerRun(200, run))
		}
		if least > f.most {
			t.Errorf("%s: %v allocations, want %v at most", f.name, least, f.most)
		}
	}
}
