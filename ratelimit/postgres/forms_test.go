package postgres_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// The interpreter makes some steps have a short form for frequent input. These tests run both forms on
// the same random input.

// randomCall returns a call of up to three hits on a few rows.
func randomCall(r *rand.Rand, limits []*ratelimit.Limit, keys []string) *batch.Call {
	var hits []ratelimit.Hit
	for range 1 + r.Intn(3) {
		h := ratelimit.Hit{Limit: limits[r.Intn(len(limits))], Key: keys[r.Intn(len(keys))], Cost: 1}
		switch r.Intn(12) {
		case 0:
			h.Peek = true
		case 1:
			h.Apart = true
		case 2:
			h.Cost = -1
		case 3, 4:
			h.Cost = int64(r.Intn(7))
		case 5:
			h.Secret = true
		}
		hits = append(hits, h)
		if r.Intn(2) == 0 {
			break
		}
	}
	return callFor(r.Intn(12) == 0, hits...)
}

// TestABatchIsRefusedAsItsCallsAre: the store refuses the calls of a batch that it refuses one by one,
// with the same decisions, and stores the same keys.
func TestABatchIsRefusedAsItsCallsAre(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	store := newStore(t, &fakeDB{answer: refuse}, postgres.Options{CleanupProbability: -1})
	same := *fakeLimit
	other := *fakeLimit
	other.Events++
	limits := []*ratelimit.Limit{fakeLimit, fakeLimit, &same, &other}
	keys := []string{"a", "b", "c", "unknown", "sha256:x", "\xff", strings.Repeat("k", ratelimit.MaxKey+1)}
	refused := 0
	for range 200 {
		for _, key := range keys[:3] {
			h := ratelimit.Hit{Limit: fakeLimit, Key: key, Cost: 1 + int64(r.Intn(3))}
			if err := store.Take(context.Background(), time.Second, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1)); err != nil {
				t.Fatal(err)
			}
		}
		var all, each []*batch.Call
		for range 1 + r.Intn(20) {
			c := randomCall(r, limits, keys)
			all = append(all, c)
			each = append(each, callFor(c.Reset, c.Hits...))
		}
		n := store.DecideKnown(all)
		refused += n
		for i, c := range each {
			n -= store.DecideKnown(each[i : i+1])
			if len(c.Decisions) != len(all[i].Decisions) {
				t.Fatalf("%+v: %+v by itself, %+v in a batch", c.Hits, c.Decisions, all[i].Decisions)
			}
			for j, d := range c.Decisions {
				b := all[i].Decisions[j]
				if d.Allowed != b.Allowed || d.Limit != b.Limit || d.Remaining != b.Remaining || d.Source != b.Source || (d.RetryAfter-b.RetryAfter).Abs() > 5*time.Second {
					t.Fatalf("%+v: %+v by itself, %+v in a batch", c.Hits, d, b)
				}
			}
			for j := range c.Hits {
				h := &c.Hits[j]
				if all[i].Hits[j].Key != h.Key || h.Key != (&ratelimit.Hit{Key: h.Key}).StoredKey() && !strings.HasPrefix(h.Key, batch.DigestPrefix) {
					t.Fatalf("the stored key is %q in a batch, and %q", all[i].Hits[j].Key, h.Key)
				}
			}
		}
		if n != 0 {
			t.Fatalf("a batch decides %d more", n)
		}
	}
	if refused < 100 {
		t.Errorf("only %d calls were refused", refused)
	}
}

// TestFrequentHitsArePlannedAsAllAre: the entries are the same whether or not frequent hits are
// planned in one loop.
func TestFrequentHitsArePlannedAsAllAre(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	same := *fakeLimit
	bucket := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 5, Window: time.Minute}
	limits := []*ratelimit.Limit{fakeLimit, &same, bucket}
	for range 2000 {
		var calls []*batch.Call
		for range 1 + r.Intn(8) {
			calls = append(calls, randomCall(r, limits, []string{"a", "b", "c"}))
		}
		if got, want := postgres.PlanOf(calls, true), postgres.PlanOf(calls, false); got != want {
			t.Fatalf("frequent hits in one loop:\n%s\nall by the functions:\n%s", got, want)
		}
	}
}

// TestResultsAreReadInTwoWays: all columns by one call, and one after the other.
func TestResultsAreReadInTwoWays(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, a := range conformance.Algorithms() {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 10, Window: time.Minute}
		if a == ratelimit.SlidingLog {
			continue // its rows are arrays, which are read in one way
		}
		columns := 0
		for ; columns < 12; columns++ { // as many as the algorithm has
			if _, _, err := postgres.ReadBothWays(l, 1, cells(r, 1, columns)); err == nil {
				break
			}
		}
		for range 100 {
			rows := r.Intn(20)
			together, single, err := postgres.ReadBothWays(l, rows, cells(r, rows, columns))
			if err != nil || together != single || strings.Count(single, fmt.Sprintln()) != rows {
				t.Fatalf("%v: %v\n%s\n%s", a, err, together, single)
			}
		}
	}
}

// cells returns a result of rows of bigints, the first of which numbers the row.
func cells(r *rand.Rand, rows, columns int) []byte {
	var result []byte
	for row := range rows {
		for column := range columns {
			value := uint64(r.Int63n(1 << 40))
			if column == 0 {
				value = uint64(row + 1)
			}
			result = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(result, 8), value)
		}
	}
	return result
}
