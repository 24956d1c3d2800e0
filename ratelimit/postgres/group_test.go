package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestParametersOfLimits: entries with one limit and one cost share its values, and the
// others have arrays. The parameters are right whatever those of the statement before were.
func TestParametersOfLimits(t *testing.T) {
	var got []string
	store := newStore(t, &fakeDB{answer: func(ctx context.Context, statements []*postgres.Statement) error {
		for _, s := range statements {
			got = append(got, strings.TrimSpace(fmt.Sprintln(s.Args[1:]...)))
		}
		return admit(ctx, statements)
	}}, without)
	decideCosts := func(costs []int64, limits ...*ratelimit.Limit) {
		var calls []*batch.Call
		for key, l := range limits {
			calls = append(calls, callFor(false, ratelimit.Hit{Limit: l, Key: fmt.Sprint(key), Cost: costs[key]}))
		}
		got = nil
		store.DecideBatch(calls)
	}
	decide := func(limits ...*ratelimit.Limit) { decideCosts([]int64{1, 1, 1}, limits...) }
	a := &ratelimit.Limit{Prefix: "a", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Microsecond}
	b := &ratelimit.Limit{Prefix: "b", Algorithm: ratelimit.FixedWindow, Events: 6, Window: 2 * time.Microsecond}
	day := &ratelimit.Limit{Prefix: "d", Algorithm: ratelimit.FixedWindow, Events: 7, Calendar: ratelimit.Day}
	zone := &ratelimit.Limit{Prefix: "d", Algorithm: ratelimit.FixedWindow, Events: 7, Calendar: ratelimit.Month, Zone: "Asia/Tokyo", Anchor: 30}
	bucket := &ratelimit.Limit{Prefix: "t", Algorithm: ratelimit.TokenBucket, Events: 8, Burst: 9, Window: 3 * time.Microsecond}
	for round := range 3 {
		for i, c := range []struct {
			limits []*ratelimit.Limit
			want   string
		}{
			{[]*ratelimit.Limit{a}, "a [0] [1] 1 5 1"},
			{[]*ratelimit.Limit{a, a, a}, "a [0 1 2] [1 1 1] 1 5 1"},
			{[]*ratelimit.Limit{a, a}, "a [0 1] [1 1] 1 5 1"},
			{[]*ratelimit.Limit{a, b}, "[a b] [0 1] [1 1] [1 1] [5 6] [1 2]"},
			{[]*ratelimit.Limit{b, a, b}, "[b a b] [0 1 2] [1 1 1] [1 1 1] [6 5 6] [2 1 2]"},
			{[]*ratelimit.Limit{a, a, a}, "a [0 1 2] [1 1 1] 1 5 1"},
			{[]*ratelimit.Limit{b}, "b [0] [1] 1 6 2"},
			{[]*ratelimit.Limit{day, day}, "d [0 1] [1 1] 1 7 0 day UTC 0"},
			{[]*ratelimit.Limit{zone}, "d [0] [1] 1 7 0 month Asia/Tokyo 30"},
			{[]*ratelimit.Limit{zone, day}, "[d d] [0 1] [1 1] [1 1] [7 7] [0 0] [month day] [Asia/Tokyo UTC] [30 0]"},
			{[]*ratelimit.Limit{bucket, bucket}, "t [0 1] [1 1] 1 9 3 8"},
		} {
			decide(c.limits...)
			if len(got) != 1 || got[0] != c.want {
				t.Errorf("round %d, batch %d: %q, want %q", round, i, got, c.want)
			}
		}
		decideCosts([]int64{2, 1, 2}, a, a, a)
		if want := "[a a a] [0 1 2] [1 1 1] [2 1 2] [5 5 5] [1 1 1]"; len(got) != 1 || got[0] != want {
			t.Errorf("round %d: %q, want %q", round, got, want)
		}
		// The owner of a limit may change it while it is not in use.
		a.Window *= 2
		decide(a)
		if want := fmt.Sprintf("a [0] [1] 1 5 %d", a.Window.Microseconds()); len(got) != 1 || got[0] != want {
			t.Errorf("round %d: %q, want %q", round, got, want)
		}
		a.Window = time.Microsecond
	}
}
