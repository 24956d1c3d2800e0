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

// always returns the same duration for all batches.
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

// send sends a call of n hits.
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

// ms returns times in milliseconds.
func ms(times ...float64) (all []time.Duration) {
	for _, t := range times {
		all = append(all, time.Duration(t*float64(time.Millisecond)))
	}
	return all
}

// schedules list the arrivals of calls, the times of batches (the last one applies to all later ones), the
// calls that share a batch, the end of each call, and the wait of the first call of the last batch.
var schedules = map[string]struct {
	workers     int
	takes, come []time.Duration
	batches     string
	finished    []time.Duration
	waited      float64
}{
	"a call alone waits for one batch": {4, ms(3), ms(0, 10, 20), "[[0] [1] [2]]", ms(3, 13, 23), 0},
	"calls share the next batch": {4, ms(4), ms(0, .5, 1, 1.5, 2), "[[0] [1 2 3 4]]",
		ms(4, 8, 8, 8, 8), 3.5},
	"a slow batch holds up others for 5 ms, and later ones not at all": {4, ms(1000, 1), ms(0, 1, 1, 10, 20),
		"[[0] [1 2] [3] [4]]", ms(1000, 6, 6, 11, 21), 0},
	"all workers are busy": {3, ms(1001), ms(0, 10, 20, 30, 40, 50), "[[0] [1] [2] [3 4 5]]",
		ms(1001, 1011, 1021, 2006, 2006, 2006), 975},
}

func TestCallsShareBatches(t *testing.T) {
	for name, test := range schedules {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newQueue(batch.Options{Workers: test.workers}, func(n int) time.Duration {
					return test.takes[min(n, len(test.takes)-1)]
				})
				began := time.Now()
				finished := make([]time.Duration, len(test.come))
				for i, at := range test.come {
					time.Sleep(time.Until(began.Add(at)))
					call := d.send(fmt.Sprint(i), 1)
					if !batch.Busy(d.queue) {
						t.Errorf("the queue is not busy with call %d", i)
					}
					go func() { finished[i] = wait(began, call) }()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := fmt.Sprint(d.batches); got != test.batches || d.most > test.workers {
					t.Errorf("batches %s, up to %d at once, want %s", got, d.most, test.batches)
				}
				if batch.Busy(d.queue) {
					t.Error("the queue is busy without a call")
				}
				if fmt.Sprint(finished) != fmt.Sprint(test.finished) {
					t.Errorf("finished after %v, want %v", finished, test.finished)
				}
				// The deadline of a batch is that of the call that came first.
				left := d.deadlines[len(d.deadlines)-1]
				if want := health.MostTimeouts*time.Minute - ms(test.waited)[0]; left != want {
					t.Errorf("the last batch has %v, want %v", left, want)
				}
			})
		})
	}
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

// TestBatchSize checks the bounds: 100 hits for the first batches, 400 for later ones, and more once a full
// batch takes no longer than a small one.
func TestBatchSize(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		hits  []int  // of the calls that wait for the second batch
		fill  bool   // with three hits each
		want  string // the calls of each batch
	}{
		{"one hit each", 4 * time.Millisecond, repeat(1, 1000), false, "[1 100 150 225 337 188]"},
		{"three hits each", 4 * time.Millisecond, repeat(3, 200), false, "[1 34 50 75 41]"},
		{"no hits", 4 * time.Millisecond, repeat(0, 1000), false, "[1 1000]"},
		{"one large call", 4 * time.Millisecond, []int{1, 5000, 1, 1}, false, "[1 2 2]"},
		{"hits that are filled in later", 4 * time.Millisecond, repeat(0, 500), true, "[1 100 150 225 25]"},
		{"a round trip of 100 ms", 100 * time.Millisecond, repeat(1, 3000), false,
			"[1 100 150 225 337 505 757 926]"},
		{"a round trip of a second", time.Second, repeat(1, 5000), false,
			"[1 100 150 225 337 505 757 1135 1702 89]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := batch.Options{Workers: 1}
				if test.fill {
					o.Fill = func(calls []*batch.Call) {
						for _, c := range calls {
							c.Hits = append(c.Hits[:0], make([]ratelimit.Hit, 3)...)
						}
					}
				}
				d := newQueue(o, always(test.takes))
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

// TestCallersKeepTheirTime checks that with a queue that is never empty, each call still has its whole
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
