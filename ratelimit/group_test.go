package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestParametersOfLimits: what items have from their limits is kept from one
// statement to the next, and is right whatever the limits were before.
func TestParametersOfLimits(t *testing.T) {
	var got []string
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		for _, s := range statements {
			got = append(got, fmt.Sprint(s.Args[1:]...))
		}
		return honest(ctx, statements)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	defer store.Close()
	a := &ratelimit.Limit{Prefix: "a", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Microsecond}
	b := &ratelimit.Limit{Prefix: "b", Algorithm: ratelimit.FixedWindow, Events: 6, Window: 2 * time.Microsecond}
	day := &ratelimit.Limit{Prefix: "d", Algorithm: ratelimit.FixedWindow, Events: 7, Calendar: ratelimit.Day}
	zone := &ratelimit.Limit{Prefix: "d", Algorithm: ratelimit.FixedWindow, Events: 7, Calendar: ratelimit.Week, Zone: "Asia/Tokyo"}
	bucket := &ratelimit.Limit{Prefix: "t", Algorithm: ratelimit.TokenBucket, Events: 8, Burst: 9, Window: 3 * time.Microsecond}
	for round := range 3 {
		for i, c := range []struct {
			limits []*ratelimit.Limit
			want   string
		}{
			{[]*ratelimit.Limit{a}, "[a] [0] [1] [1] [5] [1]"},
			{[]*ratelimit.Limit{a, a, a}, "[a a a] [0 1 2] [1 1 1] [1 1 1] [5 5 5] [1 1 1]"},
			{[]*ratelimit.Limit{a, a}, "[a a] [0 1] [1 1] [1 1] [5 5] [1 1]"},
			{[]*ratelimit.Limit{a, b}, "[a b] [0 1] [1 1] [1 1] [5 6] [1 2]"},
			{[]*ratelimit.Limit{b, a, b}, "[b a b] [0 1 2] [1 1 1] [1 1 1] [6 5 6] [2 1 2]"},
			{[]*ratelimit.Limit{a, a, a}, "[a a a] [0 1 2] [1 1 1] [1 1 1] [5 5 5] [1 1 1]"},
			{[]*ratelimit.Limit{b}, "[b] [0] [1] [1] [6] [2]"},
			{[]*ratelimit.Limit{day, day}, "[d d] [0 1] [1 1] [1 1] [7 7] [0 0] [day day] [UTC UTC]"},
			{[]*ratelimit.Limit{zone}, "[d] [0] [1] [1] [7] [0] [week] [Asia/Tokyo]"},
			{[]*ratelimit.Limit{zone, day}, "[d d] [0 1] [1 1] [1 1] [7 7] [0 0] [week day] [Asia/Tokyo UTC]"},
			{[]*ratelimit.Limit{bucket, bucket}, "[t t] [0 1] [1 1] [1 1] [9 9] [3 3] [8 8]"},
		} {
			got = nil
			var requests []*ratelimit.Request
			for key, l := range c.limits {
				requests = append(requests, &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(key), Cost: 1}}})
			}
			store.RunBatch(requests)
			if len(got) != 1 || got[0] != c.want {
				t.Errorf("round %d, batch %d: %q, want %q", round, i, got, c.want)
			}
		}
		// Who owns a limit may change it, though not while it is in use.
		a.Window *= 2
		got = nil
		store.RunBatch([]*ratelimit.Request{{Hits: []ratelimit.Hit{{Limit: a, Key: "0", Cost: 1}}}})
		if want := fmt.Sprintf("[a] [0] [1] [1] [5] [%d]", a.Window.Microseconds()); len(got) != 1 || got[0] != want {
			t.Errorf("round %d: %q, want %q", round, got, want)
		}
		a.Window = time.Microsecond
	}
}
