package batch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// panicTests lists the calls for which a function panics, and the calls that are decided.
var panicTests = []struct {
	during string          // the function that panics
	broken map[string]bool // the owners of the calls for which it panics
	want   string          // the owners of the calls that are decided
}{
	{during: "fill", broken: map[string]bool{}, want: "first a b c"},
	{during: "fill", broken: map[string]bool{"b": true}, want: "first a c"},
	{during: "fill", broken: map[string]bool{"a": true, "c": true}, want: "first b"},
	{during: "fill", broken: map[string]bool{"first": true, "a": true, "b": true, "c": true}, want: ""},
	{during: "deliver", broken: map[string]bool{"b": true}, want: "first a b c"},
	{during: "deliver", broken: map[string]bool{"first": true, "a": true, "b": true, "c": true},
		want: "first a b c"},
}

// A panic of Fill or Deliver for a call fails that call alone. Hits that Fill has started to set are not
// decided.
func TestPanicsFailOnlyTheirCalls(t *testing.T) {
	for _, test := range panicTests {
		synctest.Test(t, func(t *testing.T) {
			breaks := func(c *batch.Call, during string) {
				if test.broken[c.Owner.(string)] && test.during == during {
					panic("a panic with " + c.Owner.(string))
				}
			}
			d := newQueue(batch.Options{Fill: func(calls []*batch.Call) {
				for _, c := range calls {
					c.Err = nil
					c.Hits = append(c.Hits[:0], ratelimit.Hit{Cost: 1})
					breaks(c, "fill")
					c.Hits = append(c.Hits, ratelimit.Hit{Cost: 2})
				}
			}, Deliver: func(calls []*batch.Call) {
				for _, c := range calls {
					breaks(c, "deliver")
				}
			}}, constantDuration(time.Millisecond))
			for range 2 { // the second time on calls that were used before
				var calls []*batch.Call
				for _, owner := range []string{"first", "a", "b", "c"} {
					calls = append(calls, d.send(owner, 1))
					if owner == "first" {
						synctest.Wait()
					}
				}
				waitForCalls(time.Now(), calls...)
				for _, c := range calls {
					if owner := c.Owner.(string); test.broken[owner] != (c.Err != nil) ||
						c.Err != nil && !strings.Contains(c.Err.Error(), "a panic with "+owner) {
						t.Errorf("%s of %v: error %v, want a panic: %v", owner, test.broken, c.Err,
							test.broken[owner])
					}
					if c.Err == nil && (len(c.Decisions) != 2 || c.Decisions[0].Remaining != 1 ||
						c.Decisions[1].Remaining != 2) {
						t.Errorf("%s of %v: got %+v, want 1 and 2 left", c.Owner, test.broken, c.Decisions)
					}
				}
				var decided []string
				for _, b := range d.batches {
					decided = append(decided, b...)
				}
				if got := strings.Join(decided, " "); got != test.want {
					t.Errorf("%s panics with %v: decided %q, want %q", test.during, test.broken, got,
						test.want)
				}
				d.batches = nil
			}
		})
	}
}

// The end of a context ends the wait immediately. The call stays in its batch with its hits, and is finished
// without an effect and without Deliver.
func TestCancel(t *testing.T) {
	for _, when := range []string{"pending", "in flight", "finished"} {
		synctest.Test(t, func(t *testing.T) {
			enough := errors.New("enough")
			var delivered []string
			d := newQueue(batch.Options{Workers: 1, Deliver: func(calls []*batch.Call) {
				for _, c := range calls {
					delivered = append(delivered, c.Owner.(string))
				}
			}}, constantDuration(100*time.Millisecond))
			start := time.Now()
			first := d.send("first", 1)
			synctest.Wait()
			c := batch.NewCall()
			hits := []ratelimit.Hit{{Cost: 7}}
			c.Prepare(hits, false)
			hits[0].Cost = 0 // the call has a copy
			c.Owner = "canceled"
			at := map[string]time.Duration{"pending": 50, "in flight": 150,
				"finished": 250}[when] * time.Millisecond
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(at, func() { cancel(enough) })
			var took time.Duration
			reusable := true
			go func() {
				reusable = batch.Enter(ctx, d.queue, c)
				took = time.Since(start)
			}()
			synctest.Wait()
			other := d.send("other", 1)
			waitForCalls(start, first, other)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			want := "first canceled other"
			if when == "finished" {
				if !reusable || took != 200*time.Millisecond || c.Err != nil ||
					c.Decisions[0].Remaining != 7 {
					t.Errorf("%s: %v, %+v after %v; want it decided after 200ms", when, c.Err, c.Decisions,
						took)
				}
			} else {
				want = "first other"
				if reusable || took != at || !errors.Is(c.Err, enough) {
					t.Errorf("%s: error %v after %v, want %v after %v", when, c.Err, took, enough, at)
				}
			}
			if got := strings.Join(delivered, " "); got != want || c.Hits[0].Cost != 7 {
				t.Errorf("%s: delivered %q with hits %+v, want %q with cost 7", when, got, c.Hits, want)
			}
			if got := fmt.Sprint(d.batches); got != "[[first] [canceled other]]" {
				t.Errorf("%s: batches %s, want [[first] [canceled other]]", when, got)
			}
		})
	}
}

// A canceled call ends its wait once, with the decision or with the error.
func TestCancelRacesWithFinish(t *testing.T) {
	enough := errors.New("enough")
	d := newQueue(batch.Options{}, constantDuration(0))
	for range 2000 {
		c := batch.NewCall()
		c.Prepare([]ratelimit.Hit{{Cost: 7}}, false)
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(enough)
		batch.Enter(ctx, d.queue, c)
		if c.Err == nil && c.Decisions[0].Remaining != 7 || c.Err != nil && !errors.Is(c.Err, enough) {
			t.Fatalf("got %v, %+v; want the decision or the cause of the end", c.Err, c.Decisions)
		}
	}
}

// The error of a batch is the error of its calls, except calls with errors of their own.
func TestBatchErrorFailsItsCalls(t *testing.T) {
	own, shared := errors.New("own"), errors.New("shared")
	var q *batch.Queue
	q = batch.NewQueue(
		batch.Options{Timeout: time.Minute, Workers: 1, Decide: func(calls []*batch.Call, _ time.Time) {
			for _, c := range calls {
				if c.Owner == "own" {
					c.Err = own
				}
			}
			given := append([]*batch.Call(nil), calls...)
			batch.Finish(q, given, shared)
			for _, c := range given {
				if c != nil {
					t.Error("after Finish, the slice holds a call, want nil")
				}
			}
		}})
	for range 3 { // with calls that were used before
		for owner, want := range map[string]error{"own": own, "other": shared} {
			c := batch.NewCall()
			for range 2 {
				c.Prepare(nil, true)
				c.Owner = owner
				if batch.Enter(t.Context(), q, c); !errors.Is(c.Err, want) || !c.Reset {
					t.Errorf("%v: error %v, want %v", owner, c.Err, want)
				}
			}
		}
	}
}

// Many goroutines reuse their calls, and each call is decided once.
func TestEachCallIsDecidedOnce(t *testing.T) {
	var mu sync.Mutex
	decided := 0
	d := newQueue(batch.Options{Workers: 3, Deliver: func(calls []*batch.Call) {
		mu.Lock()
		defer mu.Unlock()
		decided += len(calls)
	}}, func(n int) time.Duration { return time.Duration(n%50/49) * 6 * time.Millisecond })
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			c := batch.NewCall()
			for n := range 300 {
				cost := int64(1000*i + n)
				c.Prepare([]ratelimit.Hit{{Cost: cost}, {Cost: -cost}}[:1+n%2], false)
				c.Owner = i
				batch.Enter(context.Background(), d.queue, c)
				if c.Err != nil || len(c.Decisions) != 1+n%2 || c.Decisions[0].Remaining != cost {
					t.Errorf("goroutine %d, call %d: got %v, %+v; want cost %d", i, n, c.Err, c.Decisions,
						cost)
					return
				}
			}
		})
	}
	group.Wait()
	if decided != 32*300 || d.maxInFlight > 3 {
		t.Errorf("%d calls, up to %d concurrent batches; want %d and 3", decided, d.maxInFlight, 32*300)
	}
}
