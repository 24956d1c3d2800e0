package admin_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// The example in the documentation, by hand. Ann sends a request every 10 minutes from 12:00 to
// 13:50, and Bob sends 3 at 12:30. The limit is 4 in an hour of the clock. Ann's requests at
// 12:40, 12:50, 13:40 and 13:50 were refused: 4 of 12. With 2 in an hour, Ann passes at 12:00,
// 12:10, 13:00 and 13:10, and 8 are refused; Bob passes twice. With 6, nobody is refused.
func TestTheWorkedExampleOfReplay(t *testing.T) {
	p := newPast(t, 2)
	p.rule("per_hour=4", "algorithm=fixed_window")
	noon := began.Add(12 * time.Hour)
	var log []request
	for i := range 12 {
		ann := request{at: noon.Add(time.Duration(i) * 10 * time.Minute), decision: "allowed", prefix: "rule/r", key: "ann", user: "ann", cost: 1}
		if i%6 >= 4 {
			ann.decision = "limited"
		}
		log = append(log, ann)
	}
	for range 3 {
		log = append(log, request{at: noon.Add(30 * time.Minute), decision: "allowed", prefix: "rule/r", key: "bob", user: "bob", cost: 1})
	}
	p.record(log...)
	happened := admin.ReplayCounts{Passed: 11, Refused: 4, Counters: 1, Users: 1}
	for _, c := range []struct {
		setting string
		want    admin.ReplayCounts
		changed []admin.ReplayedCounter
	}{
		{"per_hour=4", happened, nil},
		{"per_hour=2", admin.ReplayCounts{Passed: 6, Refused: 9, Counters: 2, Users: 2}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4, Replayed: 8}, {Key: "bob", Requests: 3, Replayed: 1}}},
		{"per_hour=6", admin.ReplayCounts{Passed: 15}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4}}},
		{"per_hour=0", admin.ReplayCounts{Refused: 15, Counters: 2, Users: 2}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4, Replayed: 12}, {Key: "bob", Requests: 3, Replayed: 3}}},
		{"per_hour=unlimited", admin.ReplayCounts{Passed: 15}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4}}},
		{"cost=2", admin.ReplayCounts{Passed: 6, Refused: 9, Counters: 2, Users: 2}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4, Replayed: 8}, {Key: "bob", Requests: 3, Replayed: 1}}},
		{"on_exceed=overage", admin.ReplayCounts{Passed: 15}, []admin.ReplayedCounter{{Key: "ann", Requests: 12, Refused: 4}}},
	} {
		r := p.replay(c.setting)
		if r.Requests != 15 || r.Happened != happened || r.Replayed != c.want {
			t.Errorf("%s: %d requests, happened %+v, replayed %+v, want %+v", c.setting, r.Requests, r.Happened, r.Replayed, c.want)
		}
		for i := range r.Changed {
			if *r.Changed[i].User != r.Changed[i].Key {
				t.Errorf("%s: the counter %s is of the user %s", c.setting, r.Changed[i].Key, *r.Changed[i].User)
			}
			r.Changed[i].User = nil
		}
		if fmt.Sprint(r.Changed) != fmt.Sprint(c.changed) {
			t.Errorf("%s: changed %+v, want %+v", c.setting, r.Changed, c.changed)
		}
	}
	if changes := count(p, "SELECT count(*) FROM rate_limit_changes WHERE at > (SELECT max(at) FROM rate_limit_changes WHERE kind = 'rule')"); changes != 0 {
		t.Errorf("replays have written %d changes", changes)
	}
}

func count(p *past, sql string) int64 {
	p.t.Helper()
	var n int64
	if err := p.conn.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

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

// Refusals of one second are one row with a count.
func TestAReplayCountsMergedRefusals(t *testing.T) {
	p := newPast(t, 2)
	p.rule("per_minute=1", "algorithm=fixed_window")
	p.record(
		request{at: began, decision: "allowed", prefix: "rule/r", key: "ann", user: "ann", cost: 1},
		request{at: began.Add(time.Second), decision: "limited", prefix: "rule/r", key: "ann", user: "ann", cost: 1, count: 1000000},
		request{at: began.Add(time.Second), decision: "limited", prefix: "rule/r", cost: 1, count: 7}, // by a limit of 0
		request{at: began.Add(time.Second), decision: "shadow", prefix: "rule/r", key: "ann", cost: 1, count: 5},
		request{at: began.Add(2 * time.Second), decision: "limited", prefix: "web", key: "x", cost: 1, count: 3, also: []string{"rule/r", "ann"}},
	)
	r := p.replay("per_minute=400", "limit.hour=300/1h")
	if r.Requests != 1000001 || r.Replayed.Passed != 300 || r.Replayed.Refused != 999701 || r.Unknown != 7 || r.Shadow != 5 || r.ByOthers != 3 {
		t.Errorf("%+v", r)
	}
	if !r.WarmUntil.Equal(began.Add(time.Hour)) || !r.First.Equal(began) || !r.Last.Equal(began.Add(time.Second)) {
		t.Errorf("warm until %s, requests from %s to %s", r.WarmUntil, r.First, r.Last)
	}
}

func TestAReplayRefusesWhatItCannotKnow(t *testing.T) {
	p := newPast(t, 2)
	p.rule("per_hour=3")
	if _, err := p.try("per_hour=2"); !errors.Is(err, admin.ErrNotFound) || !strings.Contains(err.Error(), "no request") {
		t.Errorf("an empty audit log: %v", err)
	}
	p.record(request{at: began, decision: "limited", prefix: "rule/r", key: "ann", cost: 1})
	if _, err := p.try("per_hour=2"); err == nil || !strings.Contains(err.Error(), "only refusals") || !strings.Contains(err.Error(), "audit all") {
		t.Errorf("only refusals: %v", err)
	}
}
