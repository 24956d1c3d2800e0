package ratelimit_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// drawLimits draws limits of several algorithms, in both tables, that a few hits
// of small cost use up.
func drawLimits(t *rapid.T, prefix func(string) string) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for n := rapid.IntRange(2, 4).Draw(t, "limits"); n > 0; n-- {
		l := drawOfWay(t, rapid.SampledFrom(ways).Draw(t, "way"), prefix("p"))
		if l.Events > 12 {
			l.Events = 12
		}
		if l.Burst > 12 {
			l.Burst = 12
		}
		l.Durable = rapid.Bool().Draw(t, "durable")
		l.SynchronousCommit = rapid.Bool().Draw(t, "synchronous")
		limits = append(limits, l)
	}
	return limits
}

// drawSeveral draws a request of several hits, each on a row of its own.
func drawSeveral(t *rapid.T, limits []*ratelimit.Limit, refunds bool) *ratelimit.Request {
	r := &ratelimit.Request{}
	for _, l := range limits {
		if len(r.Hits) > 0 && rapid.IntRange(0, 3).Draw(t, "skip") == 0 {
			continue
		}
		h := ratelimit.Hit{Limit: l, Key: rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"),
			Cost: rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, l.Capacity()+1)).Draw(t, "cost")}
		switch rapid.IntRange(0, 15).Draw(t, "what") {
		case 0:
			h.Peek = true
		case 1:
			h.Cost = 0
		case 2:
			if refunds {
				h.Cost = -h.Cost
			}
		}
		r.Hits = append(r.Hits, h)
	}
	return r
}

// TestRequestsEqual runs random batches of requests of several hits, and what
// they give back, with the SQL statements and with the Go steps: every decision
// and every row must be equal.
func TestRequestsEqual(t *testing.T) {
	c := &clock{}
	store, _ := openPostgres(t, ratelimit.PostgresOptions{Now: c.ticking, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	createTables(t, store)
	schedule := 0
	check(t, 600, func(t *rapid.T) {
		schedule++
		c.now = 1_700_000_000 * second
		steps := ratelimit.NewSteps()
		n := 0
		limits := drawLimits(t, func(name string) string { n++; return fmt.Sprint(name, schedule, "/", n) })
		for batch := rapid.IntRange(1, 4).Draw(t, "batches"); batch > 0; batch-- {
			drawClock(t, c, limits[0])
			draw := func(most int, what string) (got, want []*ratelimit.Request) {
				for n := rapid.IntRange(0, most).Draw(t, what); n > 0; n-- {
					r := drawSeveral(t, limits, true)
					r.Reset = rapid.IntRange(0, 15).Draw(t, "reset") == 0
					got = append(got, r)
					want = append(want, &ratelimit.Request{Hits: r.Hits, Reset: r.Reset})
				}
				return got, want
			}
			// Between a charge and its give-back, time may pass, and others come.
			got, want := draw(8, "requests")
			gotBetween, wantBetween := draw(4, "requests between")
			c.tick = rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-second, second), rapid.Int64Range(0, 2*span(limits[0])), rapid.Just(span(limits[0]))).Draw(t, "tick") % horizon
			goClock := *c
			store.RunBatch(got, gotBetween...)
			steps.RunBatch(goClock.ticking, want, wantBetween...)
			if *c != goClock {
				t.Fatalf("the batches that follow from one take until %d in SQL, and until %d in Go", c.now, goClock.now)
			}
			want = append(want, wantBetween...)
			for i, r := range append(got, gotBetween...) {
				compare(t, fmt.Sprintf("request %d of %d: %+v", i, len(got), r.Hits), c.now, r, want[i].Decisions)
			}
		}
		var reads []*ratelimit.Statement
		var hits []ratelimit.Hit
		got := make([]seen, 2*len(limits))
		for i, l := range limits {
			for j, key := range []string{"k", "l"} {
				hits = append(hits, ratelimit.Hit{Limit: l, Key: key})
				reads = append(reads, ratelimit.RowStatement(hits[2*i+j], &got[2*i+j].row, &got[2*i+j].found))
			}
		}
		if err := store.Run(reads); err != nil {
			t.Fatal(err)
		}
		for i, h := range hits {
			var want seen
			want.row, want.found = steps.RowOf(h)
			if got[i] != want {
				t.Fatalf("%+v %q has the row\n  Go %+v\n SQL %+v", *h.Limit, h.Key, want, got[i])
			}
		}
	})
}

// decider decides a batch of requests at a time.
type decider interface {
	decide(t *rapid.T, requests []*ratelimit.Request)
}

type postgresDecider struct{ store *ratelimit.Postgres }

func (d postgresDecider) decide(t *rapid.T, requests []*ratelimit.Request) {
	d.store.RunBatch(requests)
	for _, r := range requests {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

type memoryDecider struct{ store *ratelimit.Memory }

func (d memoryDecider) decide(t *rapid.T, requests []*ratelimit.Request) {
	for _, r := range requests {
		r.Decisions = sequentially(t, d.store, r)
	}
}

// even runs batches of requests of several hits, and after each checks that each
// limit was charged what the admitted requests cost on it, and nothing else.
func even(t *rapid.T, c *clock, d decider, prefix func(string) string) {
	c.now = 1_700_000_000 * second
	limits := drawLimits(t, prefix)
	left := func() map[string]int64 {
		all := map[string]int64{}
		var requests []*ratelimit.Request
		for _, l := range limits {
			for _, key := range []string{"k", "l"} {
				requests = append(requests, &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l, Key: key}}})
			}
		}
		d.decide(t, requests)
		for _, r := range requests {
			all[r.Hits[0].Limit.Prefix+r.Hits[0].Key] = r.Decisions[0].Remaining
		}
		return all
	}
	for batch := rapid.IntRange(1, 4).Draw(t, "batches"); batch > 0; batch-- {
		c.now += rapid.Int64Range(0, span(limits[0])/2).Draw(t, "advance")
		before := left()
		var requests []*ratelimit.Request
		for n := rapid.IntRange(1, 10).Draw(t, "requests"); n > 0; n-- {
			requests = append(requests, drawSeveral(t, limits, false))
		}
		d.decide(t, requests)
		after := left()
		want := map[string]int64{}
		for _, r := range requests {
			passed := true
			for _, decision := range r.Decisions {
				passed = passed && decision.Allowed
			}
			for _, h := range r.Hits {
				if passed && !h.Peek {
					want[h.Limit.Prefix+h.Key] += h.Cost
				}
			}
		}
		for row := range before {
			if charged := before[row] - after[row]; charged != want[row] {
				t.Fatalf("%s was charged %d, the requests that passed cost %d", row, charged, want[row])
			}
		}
	}
}

// TestEven lets many requests of several limits at once compete for quotas that
// run out: all of a request's limits are charged, or none.
func TestEven(t *testing.T) {
	c := &clock{}
	t.Run("memory", func(t *testing.T) {
		n := 0
		check(t, 2000, func(t *rapid.T) {
			even(t, c, memoryDecider{ratelimit.NewMemory(0, c.read)}, func(name string) string { n++; return fmt.Sprint(name, n) })
		})
	})
	t.Run("postgres", func(t *testing.T) {
		store, _ := openPostgres(t, ratelimit.PostgresOptions{Now: c.read, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
		n := 0
		check(t, 500, func(t *rapid.T) {
			even(t, c, postgresDecider{store}, func(name string) string { n++; return fmt.Sprint(name, n) })
		})
	})
}

// TestGivenBackLate lets time pass between a charge and its give-back: no limit
// may admit more for it than if the charge had never been.
func TestGivenBackLate(t *testing.T) {
	c := &clock{}
	store, _ := openPostgres(t, ratelimit.PostgresOptions{Now: c.ticking, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	n := 0
	check(t, 1000, func(t *rapid.T) {
		c.now, c.tick = 1_700_000_000*second, 0
		n++
		l := drawOfWay(t, rapid.SampledFrom(ways).Draw(t, "way"), fmt.Sprint("a", n))
		closed := &ratelimit.Limit{Prefix: fmt.Sprint("b", n), Algorithm: ratelimit.FixedWindow, Events: 1, Window: ratelimit.MaxWindow}
		var log []entry
		for step := rapid.IntRange(1, 8).Draw(t, "steps"); step > 0; step-- {
			c.tick = 0
			c.now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, span(l)), rapid.Just(span(l)/2)).Draw(t, "advance")
			h := ratelimit.Hit{Limit: l, Key: "k", Cost: rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, l.Capacity())).Draw(t, "cost")}
			if rapid.Bool().Draw(t, "charged in vain") {
				takeOne(t, store, ratelimit.Hit{Limit: closed, Key: "k", Cost: 1}) // if it is not closed
				c.tick = rapid.OneOf(rapid.Int64Range(0, second), rapid.Int64Range(0, 2*span(l))).Draw(t, "tick") % (horizon / 2)
				charged := c.now
				r := &ratelimit.Request{Hits: []ratelimit.Hit{h, {Limit: closed, Key: "k", Cost: 1}}}
				store.RunBatch([]*ratelimit.Request{r})
				if r.Err != nil || r.Decisions[1].Allowed {
					t.Fatalf("of the closed limit: %+v", r)
				}
				if r.Decisions[0].Allowed {
					log = append(log, entry{charged, 0}) // it may have opened a window
				}
			} else if takeOne(t, store, h).Allowed {
				log = append(log, entry{c.now, h.Cost})
			}
			if c.now > latest {
				return
			}
		}
		if err := bounded(l, log); err != nil {
			t.Fatalf("%+v: %v in %v", *l, err, log)
		}
	})
}

// TestMixed sends requests that charge some limits and give back to others: one
// that is refused charges nothing, and what it gives back is given all the same.
func TestMixed(t *testing.T) {
	c := &clock{}
	store, _ := openPostgres(t, ratelimit.PostgresOptions{Now: c.read, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	n := 0
	check(t, 600, func(t *rapid.T) {
		c.now = 1_700_000_000 * second
		memory := ratelimit.NewMemory(0, c.read)
		limits := drawLimits(t, func(name string) string { n++; return fmt.Sprint(name, n) })
		for requests := rapid.IntRange(1, 10).Draw(t, "requests"); requests > 0; requests-- {
			r := drawSeveral(t, limits, true)
			store.RunBatch([]*ratelimit.Request{r})
			want := sequentially(t, memory, r)
			for i := range want {
				if r.Err != nil || r.Decisions[i].Allowed != want[i].Allowed || r.Decisions[i].RetryAfter != want[i].RetryAfter ||
					r.Decisions[i].Remaining != want[i].Remaining {
					t.Fatalf("hit %d of %+v:\n  Memory %+v\n Postgres %+v, %v", i, r.Hits, want, r.Decisions, r.Err)
				}
			}
		}
	})
}
