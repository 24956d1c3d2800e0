package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// total is how many values a histogram has counted.
func total(h chain.Histogram) int64 {
	sum := int64(0)
	for _, n := range h.Counts {
		sum += n
	}
	return sum
}

// TestStatsOfBatches tell how large batches were, how long they waited and how long they took.
func TestStatsOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 20 * time.Millisecond
		store := newStore(t, &fakeDB{answer: func(ctx context.Context, statements []*pgdb.Statement) error {
			time.Sleep(pause)
			return admit(ctx, statements)
		}}, without)
		limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}
		requests := int64(0)
		for _, size := range []int{1, 2, 3, 5} {
			var calls []*batch.Call
			for i := range size {
				c := batch.NewCall()
				c.Prepare([]ratelimit.Hit{{Limit: limit, Key: fmt.Sprint(i), Cost: 1}}, false)
				calls = append(calls, c)
				requests++
			}
			store.DecideBatch(calls)
		}
		s := store.Stats()
		// Up to 1, 2, 4 and 8 requests.
		if !slices.Equal(s.Sizes.Counts[:5], []int64{1, 1, 1, 1, 0}) || s.Sizes.Sum != requests || s.Requests != requests || s.Batches != 4 {
			t.Errorf("sizes %v, %d requests in %d batches; want one batch each of 1, 2, 3 and 5", s.Sizes, s.Requests, s.Batches)
		}
		if fast := s.Times.Counts[:14]; slices.Max(fast) > 0 || total(s.Times) != 4 || s.Times.Sum < 4*pause.Microseconds() {
			t.Errorf("times in µs %v; want 4 batches, none of which took less than %v", s.Times, pause)
		}
		if total(s.Waits) != 4 || s.Waits.Sum < 0 || s.Waits.Sum > time.Minute.Microseconds() {
			t.Errorf("waits in µs %v; want 4 short ones", s.Waits)
		}
		s.Sizes.Counts[0] = 100
		s.Errors["40"] = 100
		if again := store.Stats(); again.Sizes.Counts[0] != 1 || again.Errors["40"] != 0 {
			t.Error("a caller's change of the stats has changed the store's")
		}
		store.Close()
	})
}

// TestStatsOfErrors counts them by the class of their SQLSTATE. What fails on purpose is no error,
// and neither is what was rolled back with an error.
func TestStatsOfErrors(t *testing.T) {
	hit := func(prefix string) ratelimit.Hit {
		return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}, Key: "k", Cost: 1}
	}
	always := func(*pgdb.Statement) bool { return true }
	lost := func(err error, code string) answerFunc {
		return func(_ context.Context, statements []*pgdb.Statement) error {
			for _, s := range statements {
				s.Err, s.Code = err, code
			}
			return err
		}
	}
	for name, test := range map[string]struct {
		answer answerFunc
		hits   []ratelimit.Hit
		want   string // the class; "" for none
	}{
		"success":                        {admit, []ratelimit.Hit{hit("a")}, ""},
		"no room":                        {refuse, []ratelimit.Hit{hit("a"), hit("b")}, ""},
		"deadlock":                       {failing("40P01", "deadlock detected", always), []ratelimit.Hit{hit("a")}, "40"},
		"syntax":                         {failing("42601", "syntax error", always), []ratelimit.Hit{hit("a")}, "42"},
		"an unusual class":               {failing("HV000", "foreign", always), []ratelimit.Hit{hit("a")}, "other"},
		"no SQLSTATE":                    {failing("", "?", always), []ratelimit.Hit{hit("a")}, "other"},
		"the server ends the session":    {lost(errors.New("terminating"), "57P01"), []ratelimit.Hit{hit("a")}, "57"},
		"too many connections":           {lost(errors.New("too many clients"), "53300"), []ratelimit.Hit{hit("a")}, "53"},
		"the network fails":              {lost(errors.New("reset by peer"), ""), []ratelimit.Hit{hit("a")}, "connection"},
		"the answer does not come":       {lost(fmt.Errorf("waiting: %w", context.DeadlineExceeded), ""), []ratelimit.Hit{hit("a")}, "timeout"},
		"text that is no number":         {failing("22P02", `invalid input syntax for type integer: "x"`, isCheck), []ratelimit.Hit{hit("a"), hit("b")}, "22"},
		"a transaction of several fails": {failing("40001", "could not serialize", isCheck), []ratelimit.Hit{hit("a"), hit("b")}, "40"},
	} {
		store := newStore(t, &fakeDB{answer: test.answer}, without)
		decisions := make([]ratelimit.Decision, len(test.hits))
		err := store.Take(context.Background(), longTime, test.hits, decisions)
		got := store.Stats().Errors
		if len(got) != len(sqlstate.Classes) {
			t.Errorf("%s: %d classes, want all of %d", name, len(got), len(sqlstate.Classes))
		}
		for class, n := range got {
			if (class == test.want) != (n > 0) {
				t.Errorf("%s: %d errors of class %s, want those of %q only; %v", name, n, class, test.want, err)
			}
		}
	}
}

// TestStatsOfAnOutage: a database that cannot be reached adds errors of connections while the
// outage lasts, also without requests.
func TestStatsOfAnOutage(t *testing.T) {
	t.Parallel()
	for name, open := range drivers.All {
		store := newStore(t, open(t, "postgres://u@127.0.0.1:1/db?sslmode=disable"), without)
		hit := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Events: 10, Window: time.Hour}, Key: "k", Cost: 1}
		if _, _, err := tryOne(store, time.Second, hit); err == nil {
			t.Fatalf("%s: a decision without a database", name)
		}
		before := store.Stats().Errors["connection"]
		await.Within(t, longTime, name+": more errors", func() bool { return store.Stats().Errors["connection"] >= before+2 })
	}
}
