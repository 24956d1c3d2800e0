package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// panicTests lists the calls for which a function panics, and the calls that are decided.
var panicTests = []struct {
	during string          // the function that panics
	broken map[string]bool // the owners of the calls for which it panics
	want   string          // the owners of the calls that are decided
}{
	{during: "fill", broken: map[string]bool{"b": true}, want: "first a c"},
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
			d := newQueue(batch.Options{}, functions{fill: func(calls []*batch.Call) {
				for _, c := range calls {
					c.Err = nil
					c.Hits = append(c.Hits[:0], ratelimit.Hit{Cost: 1})
					breaks(c, "fill")
					c.Hits = append(c.Hits, ratelimit.Hit{Cost: 2})
				}
			}, deliver: func(calls []*batch.Call) {
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
					owner, wantErr := c.Owner.(string), "<nil>"
					if test.broken[owner] {
						wantErr = "a panic with " + owner
					}
					if !strings.Contains(fmt.Sprint(c.Err), wantErr) {
						t.Errorf("%s of %v: error %v, want %s", owner, test.broken, c.Err, wantErr)
					}
					want := []ratelimit.Decision{{Allowed: true, Remaining: 1}, {Allowed: true, Remaining: 2}}
					if c.Err == nil && !slices.Equal(c.Decisions, want) {
						t.Errorf("%s of %v: got %+v, want %+v", owner, test.broken, c.Decisions, want)
					}
				}
				var decided []string
				for _, b := range d.batches {
					decided = append(decided, b...)
				}
				check.Equal(t, fmt.Sprintf("%s panics with %v: decided", test.during, test.broken),
					strings.Join(decided, " "), test.want)
				d.batches = nil
			}
		})
	}
}

// If the context of a caller ends, the caller stops waiting immediately. The call of the caller stays in the
// batch with its hits, and is finished without Deliver.
func TestCanceledCallerStopsWaiting(t *testing.T) {
	for when, test := range map[string]struct {
		at             time.Duration // the time of the cancellation
		end, delivered string
	}{
		"pending":   {ms(50)[0], "false after 50ms: enough", "first other"},
		"in flight": {ms(150)[0], "false after 150ms: enough", "first other"},
		"finished":  {ms(250)[0], "true after 200ms: <nil>", "first canceled other"},
	} {
		synctest.Test(t, func(t *testing.T) {
			enough := errors.New("enough")
			var delivered []string
			d := newQueue(batch.Options{Workers: 1}, functions{deliver: func(calls []*batch.Call) {
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
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(test.at, func() { cancel(enough) })
			var took time.Duration
			reusable := true
			var err error
			go func() {
				reusable, err = batch.Enter(ctx, d.queue, c, time.Now())
				took = time.Since(start)
			}()
			synctest.Wait()
			other := d.send("other", 1)
			waitForCalls(start, first, other)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			check.Equal(t, when+": reusable", fmt.Sprintf("%t after %v: %v", reusable, took, err), test.end)
			if c.Err == nil && c.Decisions[0].Remaining != 7 {
				t.Errorf("%s: decisions %+v, want the cost 7", when, c.Decisions)
			}
			if got := strings.Join(delivered, " "); got != test.delivered || c.Hits[0].Cost != 7 {
				t.Errorf("%s: delivered %q with hits %+v, want %q with cost 7", when, got, c.Hits,
					test.delivered)
			}
			check.Equal(t, when+": batches", d.batches, "[[first] [canceled other]]")
		})
	}
}

// A call that is canceled while its batch finishes ends once, with the decision or with the cause of the
// cancellation.
func TestCancelRacesWithFinish(t *testing.T) {
	enough := errors.New("enough")
	d := newQueue(batch.Options{}, functions{}, constantDuration(0))
	for range 2000 {
		c := batch.NewCall()
		c.Prepare([]ratelimit.Hit{{Cost: 7}}, false)
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(enough)
		_, err := batch.Enter(ctx, d.queue, c, time.Now())
		isDecided := err == nil && c.Decisions[0].Remaining == 7
		if !isDecided && !errors.Is(err, enough) {
			t.Fatalf("got %v; want the decision or the cause of the end", err)
		}
	}
}

// The number of a bill has the time of its prices, to the microsecond. A random one has none.
func TestBillIDHasItsTime(t *testing.T) {
	for at := int64(1796000000000000); at < 1796000000001000; at++ {
		check.Equal(t, "the time", batch.PricedAt(batch.BillIDs(at)[0]), at)
	}
	check.Equal(t, "a random one", batch.PricedAt("8a6e0804-2bd0-4672-b79d-d97027f9071a"), int64(0))
}
