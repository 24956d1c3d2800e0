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
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// decider decides batches as a slow database does, and records them.
type decider struct {
	queue *batch.Queue
	takes func(n int) time.Duration // how long the nth batch takes, from 0

	mu             sync.Mutex
	batches        [][]string      // the owners of the calls
	deadlines      []time.Duration // how much time each batch has
	inFlight, most int
}

// newQueue returns a queue. takes(n) returns the time of a batch of n hits.
func newQueue(o batch.Options, takes func(n int) time.Duration) *decider {
	d := &decider{takes: takes}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Workers == 0 {
		o.Workers = 4
	}
	o.Decide = d.decide
	d.queue = batch.NewQueue(o)
	return d
}

// always is a duration that all batches take.
func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// decide allows every hit. Remaining of its decision is the hit's cost.
func (d *decider) decide(calls []*batch.Call, deadline time.Time) {
	d.mu.Lock()
	n := len(d.batches)
	var owners []string
	for _, c := range calls {
		owners = append(owners, fmt.Sprint(c.Owner))
	}
	d.batches = append(d.batches, owners)
	d.deadlines = append(d.deadlines, time.Until(deadline))
	d.inFlight++
	d.most = max(d.most, d.inFlight)
	d.mu.Unlock()
	time.Sleep(d.takes(n))
	d.mu.Lock()
	d.inFlight--
	d.mu.Unlock()
	for _, c := range calls {
		for _, h := range c.Hits {
			c.Decisions = append(c.Decisions, ratelimit.Decision{Allowed: true, Remaining: h.Cost})
		}
	}
	batch.Finish(d.queue, calls, nil)
}

// send sends a call of so many hits.
func (d *decider) send(owner string, hits int) *batch.Call {
	c := batch.NewCall()
	c.Owner = owner
	c.Prepare(make([]ratelimit.Hit, hits), false)
	batch.Send(d.queue, c, time.Now())
	return c
}

// sizes returns the number of calls of each batch.
func (d *decider) sizes() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var sizes []int
	for _, b := range d.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

// wait waits for calls and returns when the last was finished.
func wait(began time.Time, calls ...*batch.Call) time.Duration {
	for _, c := range calls {
		batch.Wait(c)
	}
	return time.Since(began)
}

func TestLoneCallWaitsForOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newQueue(batch.Options{}, always(3*time.Millisecond))
		for range 3 {
			if batch.Busy(d.queue) {
				t.Error("the queue is busy without a call")
			}
			began := time.Now()
			c := batch.NewCall()
			c.Prepare([]ratelimit.Hit{{Cost: 7}}, false)
			batch.Enter(d.queue, c)
			if took := time.Since(began); took != 3*time.Millisecond || c.Err != nil ||
				c.Decisions[0].Remaining != 7 {
				t.Errorf("%v, %+v after %v", c.Err, c.Decisions, took)
			}
			synctest.Wait()
		}
		if got := fmt.Sprint(d.sizes()); got != "[1 1 1]" {
			t.Errorf("batches of %s calls", got)
		}
	})
}

func TestCallsShareTheNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newQueue(batch.Options{}, always(4*time.Millisecond))
		began := time.Now()
		calls := []*batch.Call{d.send("first", 1)}
		synctest.Wait()
		for _, owner := range []string{"a", "b", "c", "d"} {
			time.Sleep(500 * time.Microsecond)
			calls = append(calls, d.send(owner, 1))
			if !batch.Busy(d.queue) {
				t.Error("the queue is not busy with a batch in flight")
			}
		}
		if took := wait(began, calls...); took != 8*time.Millisecond {
			t.Errorf("two batches took %v", took)
		}
		if got := fmt.Sprint(d.batches); got != "[[first] [a b c d]]" {
			t.Errorf("batches %s", got)
		}
		// The deadline is that of the call that came first.
		if got := d.deadlines[1]; got != health.MostTimeouts*time.Minute-3500*time.Microsecond {
			t.Errorf("the second batch has %v", got)
		}
	})
}

func TestSlowBatchHoldsUpOthersForFiveMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newQueue(batch.Options{},
			func(n int) time.Duration { return []time.Duration{time.Second, time.Millisecond}[min(n, 1)] })
		began := time.Now()
		slow := d.send("slow", 1)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		a, b := d.send("a", 1), d.send("b", 1)
		if took := wait(began, a, b); took != 6*time.Millisecond {
			t.Errorf("calls behind a slow batch were finished after %v", took)
		}
		// Once another worker collects, no call waits for the slow batch at all.
		for range 3 {
			sent := time.Now()
			if took := wait(sent, d.send("later", 1)); took != time.Millisecond {
				t.Errorf("a later call was finished after %v", took)
			}
		}
		if took := wait(began, slow); took != time.Second {
			t.Errorf("the slow batch took %v", took)
		}
	})
}

// TestOneBatchAtATimeAfterASlowOne: when the slow batch has returned, calls share batches as
// before.
func TestOneBatchAtATimeAfterASlowOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newQueue(batch.Options{}, func(n int) time.Duration {
			return []time.Duration{100 * time.Millisecond, 4 * time.Millisecond}[min(n, 1)]
		})
		var calls []*batch.Call
		for range 200 {
			calls = append(calls, d.send("k", 1))
			time.Sleep(time.Millisecond)
			if len(calls) == 110 {
				d.mu.Lock()
				d.most = 0
				d.mu.Unlock()
			}
		}
		wait(time.Now(), calls...)
		if d.most != 1 {
			t.Errorf("%d batches were in flight at once after the slow one", d.most)
		}
	})
}

func TestBatchesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newQueue(batch.Options{Workers: 3}, always(time.Second))
		began := time.Now()
		var calls []*batch.Call
		for i := range 6 {
			calls = append(calls, d.send(fmt.Sprint(i), 1))
			time.Sleep(10 * time.Millisecond)
		}
		if took := wait(began, calls[:3]...); took != 1020*time.Millisecond {
			t.Errorf("the first three batches took %v", took)
		}
		if took := wait(began, calls[3:]...); took < 2*time.Second || took > 2005*time.Millisecond {
			t.Errorf("the calls that waited for a worker were finished after %v", took)
		}
		if got := fmt.Sprint(d.batches); got != "[[0] [1] [2] [3 4 5]]" || d.most != 3 {
			t.Errorf("batches %s, up to %d at once", got, d.most)
		}
	})
}

// TestBatchSize: the first batches have up to 100 hits, later ones up to 400, or more once a full
// batch takes no longer than a small one.
func TestBatchSize(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		hits  []int  // of the calls that wait for the second batch
		want  string // the calls of each batch
	}{
		{"one hit each", 4 * time.Millisecond, repeat(1, 1000), "[1 100 150 225 337 188]"},
		{"three hits each", 4 * time.Millisecond, repeat(3, 200), "[1 34 50 75 41]"},
		{"no hits", 4 * time.Millisecond, repeat(0, 1000), "[1 1000]"},
		{"one large call", 4 * time.Millisecond, []int{1, 5000, 1, 1}, "[1 2 2]"},
		{"a round trip of 100 ms", 100 * time.Millisecond, repeat(1, 3000),
			"[1 100 150 225 337 505 757 926]"},
		{"a round trip of a second", time.Second, repeat(1, 5000),
			"[1 100 150 225 337 505 757 1135 1702 89]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newQueue(batch.Options{Workers: 1}, always(test.takes))
				calls := []*batch.Call{d.send("first", 1)}
				synctest.Wait()
				want := []string{"first"}
				for i, hits := range test.hits {
					want = append(want, fmt.Sprint(i))
					calls = append(calls, d.send(want[i+1], hits))
				}
				wait(time.Now(), calls...)
				var got []string
				for _, b := range d.batches {
					got = append(got, b...)
				}
				if sizes := fmt.Sprint(d.sizes()); sizes != test.want ||
					strings.Join(got, " ") != strings.Join(want, " ") {
					t.Errorf("batches of %s calls, want %s, in the order of arrival", sizes, test.want)
				}
			})
		})
	}
}

func repeat(hits, calls int) []int {
	all := make([]int, calls)
	for i := range all {
		all[i] = hits
	}
	return all
}

// TestCallersKeepTheirTime: if the queue is never empty, each call still has its whole
// timeout, and no call fails that a batch could answer in time.
func TestCallersKeepTheirTime(t *testing.T) {
	for _, callers := range []int{1, 300, 1000, 6000, 18_000} { // 18,000 calls wait for 180 of their 200 ms
		synctest.Test(t, func(t *testing.T) {
			const takes = 4 * time.Millisecond
			var d *decider
			began := time.Now()
			failed, finished := 0, 0
			d = newQueue(batch.Options{Timeout: 200 * time.Millisecond, Workers: 1,
				Deliver: func(calls []*batch.Call) {
					for _, c := range calls { // each caller asks again at once, for a second
						finished++
						if c.Err != nil {
							failed++
						}
						if time.Since(began) < time.Second {
							d.send("again", 1)
						}
					}
				}}, always(takes))
			for range callers {
				d.send("first", 1)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			for i, left := range d.deadlines {
				if left < takes {
					t.Fatalf("%d callers: batch %d has %v", callers, i, left)
				}
			}
			if failed > 0 || finished < 5*callers {
				t.Errorf("%d callers: %d of %d calls failed", callers, failed, finished)
			}
		})
	}
}

// TestCallsThatCannotBeAnsweredInTime fail at once while the database does not answer, and do not
// shorten the time of the others.
func TestCallsThatCannotBeAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing, stop := context.WithCancel(context.Background())
		defer stop()
		random := func() float64 { return 0 }
		silent := health.New(closing, random, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_ = silent.Failed(silent.Begin(), time.Second, context.DeadlineExceeded)
		d := newQueue(batch.Options{Timeout: 250 * time.Millisecond, Workers: 1, Health: silent},
			func(n int) time.Duration {
				return []time.Duration{200, 100}[n] * time.Millisecond
			})
		began := time.Now()
		first := d.send("first", 1)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		late := d.send("late", 1) // would have 60 ms for a batch
		time.Sleep(140 * time.Millisecond)
		fresh := d.send("fresh", 1)
		if took := wait(began, first, late); took != 200*time.Millisecond || first.Err != nil ||
			!errors.Is(late.Err, ratelimit.ErrTimeout) {
			t.Errorf("after %v: %v, and of the late call %v", took, first.Err, late.Err)
		}
		if took := wait(began, fresh); took != 300*time.Millisecond || fresh.Err != nil ||
			d.deadlines[1] != 200*time.Millisecond {
			t.Errorf("the fresh call: %v after %v; its batch had %v", fresh.Err, took, d.deadlines[1])
		}
	})
}
