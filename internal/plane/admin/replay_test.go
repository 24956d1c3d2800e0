package admin_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// drawn is a random rule: one or two limits of one algorithm, and a cost.
type drawn struct {
	algorithm ratelimit.Algorithm
	events    []int64
	windows   []time.Duration
	burst     int64
	cost      int64
}

var drawnWindows = []time.Duration{time.Second, 7 * time.Second, time.Minute, time.Hour}

func drawRule(t *rapid.T, label string) drawn {
	d := drawn{algorithm: rapid.SampledFrom(conformance.Algorithms()).Draw(t, label+" algorithm"), cost: rapid.Int64Range(1, 3).Draw(t, label+" cost")}
	for i := range rapid.IntRange(1, 2).Draw(t, label+" limits") {
		d.events = append(d.events, rapid.Int64Range(1, 12).Draw(t, fmt.Sprint(label, " events ", i)))
		d.windows = append(d.windows, rapid.SampledFrom(drawnWindows).Draw(t, fmt.Sprint(label, " window ", i)))
	}
	if d.algorithm == ratelimit.TokenBucket || d.algorithm == ratelimit.GCRA {
		d.burst = rapid.Int64Range(0, 8).Draw(t, label+" burst")
	}
	return d
}

// first are the settings of a new rule.
func (d drawn) first() []string {
	all := []string{"algorithm=" + d.algorithm.String(), fmt.Sprint("cost=", d.cost)}
	for i := range d.events {
		all = append(all, fmt.Sprintf("limit.%c=%d/%s", 'a'+i, d.events[i], d.windows[i]))
	}
	if d.burst > 0 {
		all = append(all, fmt.Sprint("burst=", d.burst))
	}
	return all
}

// change are the settings that make another rule of one.
func (d drawn) change(from drawn) []string {
	all := d.first()
	if len(d.events) < len(from.events) {
		all = append(all, "limit.b=")
	}
	if d.burst == 0 {
		all = append(all, "burst=")
	}
	return all
}

// waits are the times between requests. A token bucket refills at the ends of windows since its
// first request. A store deletes the row of one that is full for a minute or more, at some time,
// and then the windows begin anew. So requests to a token bucket come within a minute.
func waits(rules ...drawn) []time.Duration {
	all := []time.Duration{0, time.Microsecond, 100 * time.Millisecond, 400 * time.Millisecond, time.Second, 10 * time.Second, 17 * time.Minute}
	for _, r := range rules {
		if r.algorithm == ratelimit.TokenBucket {
			return all[:4]
		}
	}
	return all
}

// decider decides requests with a store whose clock the test sets.
type decider struct {
	store  *memory.Store
	limits []*ratelimit.Limit
	cost   int64
	now    time.Time
}

func (d drawn) decider(t *rapid.T) *decider {
	r := &decider{cost: d.cost}
	store, err := memory.New(memory.Options{Now: func() time.Time { return r.now }})
	if err != nil {
		t.Fatal(err)
	}
	r.store = store
	for i := range d.events {
		l := &ratelimit.Limit{Prefix: fmt.Sprint("p", i), Algorithm: d.algorithm, Events: d.events[i], Window: d.windows[i], Burst: d.burst}
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		r.limits = append(r.limits, l)
	}
	return r
}

func (r *decider) passes(t *rapid.T, key string, at time.Time) bool {
	r.now = at
	var hits []ratelimit.Hit
	for _, l := range r.limits {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: r.cost})
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := r.store.Take(context.Background(), time.Second, hits, decisions); err != nil {
		t.Fatal(err)
	}
	for _, d := range decisions {
		if !d.Allowed {
			return false
		}
	}
	return true
}

// TestAReplayIsWhatTheLimitsDo: requests that were decided and recorded under random limits, and
// replayed with others, fare as the same requests sent under those. Nothing is sampled, so the
// numbers are equal.
func TestAReplayIsWhatTheLimitsDo(t *testing.T) {
	p := newPast(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRule(t, "a"), drawRule(t, "b")
		p.rule(a.first()...)
		underA, underB := a.decider(t), b.decider(t)
		at := began
		var log []request
		var want struct{ happened, replayed admin.ReplayCounts }
		for i := range rapid.IntRange(1, 120).Draw(t, "requests") {
			at = at.Add(rapid.SampledFrom(waits(a, b)).Draw(t, "wait"))
			key := rapid.SampledFrom([]string{"ann", "bob", "10.0.0.1"}).Draw(t, "key")
			if rapid.IntRange(0, 9).Draw(t, "noise") == 0 {
				// What does not count: other limits, bans, and requests that another limit refused.
				log = append(log, request{at: at, decision: "blocked", prefix: "", cost: 1}, request{at: at, decision: "limited", prefix: "web", key: key, cost: 1, also: []string{"rule/r", key}},
					request{at: at, decision: "allowed", prefix: "rule/r2", key: key, cost: 9}, request{at: at, decision: "error", prefix: "rule/r", key: key, cost: 9},
					request{at: at, decision: "allowed", prefix: "web", key: "rule/r", cost: 9, also: []string{"other", "rule/r"}})
			}
			row := request{at: at, decision: "allowed", prefix: "rule/r", key: key, cost: a.cost}
			if underA.passes(t, key, at) {
				want.happened.Passed++
				if i%3 == 0 { // another limit has less left
					row.prefix, row.key, row.cost, row.also = "web", "x", 7, []string{"zone", "y", "rule/r", key}
				}
			} else {
				want.happened.Refused++
				row.decision = "limited"
			}
			if underB.passes(t, key, at) {
				want.replayed.Passed++
			} else {
				want.replayed.Refused++
			}
			log = append(log, row)
		}
		if want.happened.Passed == 0 {
			return // a replay refuses
		}
		p.record(log...)
		same := p.replay()
		if same.Happened != same.Replayed || same.Happened.Passed != want.happened.Passed || same.Happened.Refused != want.happened.Refused {
			t.Fatalf("with the limits of then: happened %+v, replayed %+v, want %+v", same.Happened, same.Replayed, want.happened)
		}
		r := p.replay(b.change(a)...)
		if r.Replayed.Passed != want.replayed.Passed || r.Replayed.Refused != want.replayed.Refused || r.Happened != same.Happened {
			t.Fatalf("happened %+v, replayed %+v, want %+v", r.Happened, r.Replayed, want.replayed)
		}
	})
}

// TestAReplayOfASampleIsAnEstimate: of 10,000 requests for each of 4 counters, a tenth of those
// that passed is recorded. A window of N requests with a weight of w is estimated with a
// deviation of √(N·w), and the number of refusals is off by no more than all of these together.
func TestAReplayOfASampleIsAnEstimate(t *testing.T) {
	p := newPast(t, 2)
	p.rule("per_hour=900", "algorithm=fixed_window")
	const perHour, hours, share = 1000, 10, 0.1
	random := rand.New(rand.NewPCG(1, 2))
	var log []request
	for i := range perHour * hours {
		at := began.Add(time.Duration(i) * time.Hour / perHour)
		for key := range 4 {
			row := request{at: at, decision: "allowed", prefix: "rule/r", key: fmt.Sprint(key), cost: 1}
			switch {
			case i%perHour >= 900:
				row.decision = "limited"
			case random.Float64() < share:
				row.weight = 1 / share
			default:
				continue
			}
			log = append(log, row)
		}
	}
	p.record(log...)
	allowed := 4 * hours * math.Sqrt(perHour/share)
	for _, events := range []int64{1000, 900, 600, 300} {
		r := p.replay(fmt.Sprint("per_hour=", events))
		want := 4 * hours * (perHour - events)
		if off := math.Abs(float64(r.Replayed.Refused - want)); off > allowed || r.Weight != 1/share {
			t.Errorf("per_hour=%d: %d refused of %d, want %d and off by at most %.0f; weight %v", events, r.Replayed.Refused, r.Requests, want, allowed, r.Weight)
		}
		if r.Happened.Refused != 4*hours*100 {
			t.Errorf("%d were refused, want all %d", r.Happened.Refused, 4*hours*100)
		}
	}
}
