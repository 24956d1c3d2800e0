package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// functions implements batch.Decider. A nil function does nothing.
type functions struct {
	queue         *batch.Queue
	fill, deliver func(calls []*batch.Call)
	decide        func(calls []*batch.Call, deadline time.Time)
}

func (f *functions) DecideBatch(calls []*batch.Call, deadline time.Time) { f.decide(calls, deadline) }

func (f *functions) Expire(calls []*batch.Call, err error) { batch.Finish(f.queue, calls, err) }

// open returns a queue of f.
func (f *functions) open(o batch.Options) *batch.Queue {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Health == nil {
		o.Health = answering
	}
	o.Fill, o.Deliver = f.fill, f.deliver
	f.queue = batch.NewQueue(o, f)
	return f.queue
}

// slowDecider decides batches as a slow database does, and records them.
type slowDecider struct {
	functions
	takes func(n int) time.Duration // the time of batch n, counted from 0

	mu                    sync.Mutex
	batches               [][]string      // the owners of the calls
	deadlines             []time.Duration // the time that each batch has
	inFlight, maxInFlight int
}

// answering is the health of a server that answers.
var answering = health.New(context.Background(), nil, nil)

// newQueue returns a slowDecider with a queue and the functions of f. takes(n) returns the time of batch n,
// counted from 0.
func newQueue(o batch.Options, f functions, takes func(n int) time.Duration) *slowDecider {
	d := &slowDecider{functions: f, takes: takes}
	d.decide = d.decideSlowly
	if o.Workers == 0 {
		o.Workers = 4
	}
	d.open(o)
	return d
}

// constantDuration returns the same duration for all batches.
func constantDuration(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// decideSlowly allows every hit. Remaining of its decision is the hit's cost.
func (d *slowDecider) decideSlowly(calls []*batch.Call, deadline time.Time) {
	d.mu.Lock()
	n := len(d.batches)
	var owners []string
	for _, c := range calls {
		owners = append(owners, fmt.Sprint(c.Owner))
	}
	d.batches = append(d.batches, owners)
	d.deadlines = append(d.deadlines, time.Until(deadline))
	d.inFlight++
	d.maxInFlight = max(d.maxInFlight, d.inFlight)
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
func (d *slowDecider) send(owner string, hits int) *batch.Call {
	c := batch.NewCall()
	c.Owner = owner
	c.Prepare(make([]ratelimit.Hit, hits), false)
	batch.Send(d.queue, c, time.Now())
	return c
}

// batchSizes returns the number of calls of each batch.
func (d *slowDecider) batchSizes() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var sizes []int
	for _, b := range d.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

// waitForCalls waits for calls and returns the time from start to the end of the last one.
func waitForCalls(start time.Time, calls ...*batch.Call) time.Duration {
	for _, c := range calls {
		batch.Wait(c)
	}
	return time.Since(start)
}

// ms converts numbers of milliseconds.
func ms(numbers ...float64) (durations []time.Duration) {
	for _, n := range numbers {
		durations = append(durations, time.Duration(n*float64(time.Millisecond)))
	}
	return durations
}

// schedules lists cases of TestCallsShareBatches.
var schedules = map[string]struct {
	workers  int
	takes    []time.Duration // the times of batches; the last one applies to all later batches
	arrivals []time.Duration // the times at which calls are sent
	hits     int             // of each call; 0 means 1
	batches  string          // the calls of each batch
	finished []time.Duration // the end of each call
	waited   float64         // the wait of the last batch's first call, in milliseconds
}{
	"a call alone waits for one batch": {
		workers: 4, takes: ms(3), arrivals: ms(0, 10, 20),
		batches: "[[0] [1] [2]]", finished: ms(3, 13, 23),
	},
	"calls share the next batch": {
		workers: 4, takes: ms(4), arrivals: ms(0, .5, 1, 1.5, 2),
		batches: "[[0] [1 2 3 4]]", finished: ms(4, 8, 8, 8, 8), waited: 3.5,
	},
	"a slow batch holds up others for 5 ms, and later ones not at all": {
		workers: 4, takes: ms(1000, 1), arrivals: ms(0, 1, 1, 10, 20),
		batches: "[[0] [1 2] [3] [4]]", finished: ms(1000, 6, 6, 11, 21),
	},
	"a batch of 20 hits is slow after 14.5 ms": {
		workers: 4, takes: ms(1000, 1), arrivals: ms(0, 1, 20), hits: 20,
		batches: "[[0] [1] [2]]", finished: ms(1000, 15.5, 21),
	},
	"after a slow batch, one batch at a time is in flight": {
		workers: 4, takes: ms(10, 4), arrivals: ms(0, 1, 7, 9.5),
		batches: "[[0] [1] [2] [3]]", finished: ms(10, 9, 13, 17), waited: 3.5,
	},
	"all workers are busy": {
		workers: 3, takes: ms(1001), arrivals: ms(0, 10, 20, 30, 40, 50),
		batches: "[[0] [1] [2] [3 4 5]]", finished: ms(1001, 1011, 1021, 2006, 2006, 2006), waited: 975,
	},
}

// Calls that arrive during a batch share the next batch. A slow batch delays other calls by at most 5 ms,
// and by more if it has many hits. The last batch has the deadline of its oldest call.
func TestCallsShareBatches(t *testing.T) {
	for name, test := range schedules {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newQueue(batch.Options{Workers: test.workers}, functions{}, func(n int) time.Duration {
					return test.takes[min(n, len(test.takes)-1)]
				})
				start := time.Now()
				finished := make([]time.Duration, len(test.arrivals))
				for i, at := range test.arrivals {
					time.Sleep(time.Until(start.Add(at)))
					call := d.send(fmt.Sprint(i), max(1, test.hits))
					if !batch.Busy(d.queue) {
						t.Errorf("Busy is false with call %d, want true", i)
					}
					go func() { finished[i] = waitForCalls(start, call) }()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := fmt.Sprint(d.batches); got != test.batches || d.maxInFlight > test.workers {
					t.Errorf("batches %s, %d concurrent; want %s, %d", got, d.maxInFlight, test.batches,
						test.workers)
				}
				if batch.Busy(d.queue) {
					t.Error("Busy is true without a call, want false")
				}
				check.Equal(t, "finished", finished, test.finished)
				// A batch has the deadline of its oldest call.
				left := d.deadlines[len(d.deadlines)-1]
				check.Equal(t, "until the deadline", left, health.MaxTimeouts*time.Minute-ms(test.waited)[0])
			})
		})
	}
}

// The first batches have at most 100 hits. The bound grows to 400, and further if a full batch takes no
// longer than a small one.
func TestBatchesGrowWhileTheyAreFast(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		hits  []int  // the numbers of hits of the calls after the first
		fill  bool   // Fill sets three hits for each call
		want  string // the number of calls of each batch
	}{
		{name: "one hit each", takes: ms(4)[0], hits: repeat(1, 1000), want: "[1 100 150 225 337 188]"},
		{name: "no hits", takes: ms(4)[0], hits: repeat(0, 1000), want: "[1 1000]"},
		{name: "one large call", takes: ms(4)[0], hits: []int{1, 5000, 1, 1}, want: "[1 2 2]"},
		{name: "hits that are filled in later", takes: ms(4)[0], hits: repeat(0, 500), fill: true,
			want: "[1 100 150 225 25]"},
		{name: "a round trip of a second", takes: time.Second, hits: repeat(1, 5000),
			want: "[1 100 150 225 337 505 757 1135 1702 89]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := functions{}
				if test.fill {
					f.fill = func(calls []*batch.Call) {
						for _, c := range calls {
							c.Hits = append(c.Hits[:0], make([]ratelimit.Hit, 3)...)
						}
					}
				}
				d := newQueue(batch.Options{Workers: 1}, f, constantDuration(test.takes))
				calls := []*batch.Call{d.send("first", 1)}
				synctest.Wait()
				want := []string{"first"}
				for i, hits := range test.hits {
					want = append(want, fmt.Sprint(i))
					calls = append(calls, d.send(want[i+1], hits))
				}
				waitForCalls(time.Now(), calls...)
				var got []string
				for _, b := range d.batches {
					got = append(got, b...)
				}
				check.Equal(t, "calls in batches", d.batchSizes(), test.want)
				if !slices.Equal(got, want) {
					t.Errorf("calls were decided in the order %v, want the order of arrival", got)
				}
			})
		})
	}
}

// repeat returns the same number of hits for each call.
func repeat(hits, calls int) []int { return slices.Repeat([]int{hits}, calls) }

// In a queue that is never empty, each call has its whole timeout, counted from its arrival, and no call
// fails that a batch could decide in time.
func TestCallersKeepTheirTime(t *testing.T) {
	for _, callers := range []int{1, 300, 1000, 6000, 18_000} { // 18,000 calls wait for 180 of their 200 ms
		synctest.Test(t, func(t *testing.T) {
			const takes = 4 * time.Millisecond
			var d *slowDecider
			start := time.Now()
			failed, finished := 0, 0
			d = newQueue(batch.Options{Timeout: 200 * time.Millisecond, Workers: 1}, functions{
				deliver: func(calls []*batch.Call) {
					for _, c := range calls { // each caller sends again immediately, for a second
						finished++
						if c.Err != nil {
							failed++
						}
						if time.Since(start) < time.Second {
							d.send("again", 1)
						}
					}
				}}, constantDuration(takes))
			for range callers {
				d.send("first", 1)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			for i, left := range d.deadlines {
				if left < takes {
					t.Fatalf("%d callers: batch %d has %v, want at least %v", callers, i, left, takes)
				}
			}
			if failed > 0 || finished < 5*callers {
				t.Errorf("%d callers: %d of %d calls failed, want 0 of %d or more", callers, failed, finished,
					5*callers)
			}
		})
	}
}

// While the database does not answer, a call that has not enough time left for a batch fails immediately, and
// takes no time from other calls. Its error is ErrTimeout, even if the database answers again meanwhile.
func TestCallsWithoutTimeFailImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing, stop := context.WithCancel(t.Context())
		defer stop()
		random := func() float64 { return 0 }
		silent := health.New(closing, random, func(ctx context.Context, _ time.Duration) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_ = silent.Failed(time.Now(), time.Second, pgdb.ErrNoAnswer)
		answerLate := func(calls []*batch.Call) {
			if calls[0].Owner == "late" {
				silent.Answered()
			}
		}
		d := newQueue(
			batch.Options{Timeout: 250 * time.Millisecond, Workers: 1, Health: silent},
			functions{fill: answerLate},
			func(n int) time.Duration {
				return []time.Duration{200, 100}[n] * time.Millisecond
			})
		start := time.Now()
		first := d.send("first", 1)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		late := d.send("late", 1) // would have 60 ms for a batch
		time.Sleep(140 * time.Millisecond)
		fresh := d.send("fresh", 1)
		took := waitForCalls(start, first, late)
		if took != 200*time.Millisecond || first.Err != nil || !errors.Is(late.Err, ratelimit.ErrTimeout) {
			t.Errorf("after %v: errors %v, %v; want none and ErrTimeout after 200ms", took, first.Err,
				late.Err)
		}
		took = waitForCalls(start, fresh)
		left := d.deadlines[1]
		if took != 300*time.Millisecond || fresh.Err != nil || left != 200*time.Millisecond {
			t.Errorf("error %v after %v, the batch had %v; want none, 300ms, 200ms", fresh.Err, took, left)
		}
	})
}
