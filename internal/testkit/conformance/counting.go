package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// step is the cost of a hit, and its decision.
type step struct {
	cost    int64
	allowed bool
	left    int64
}

// expectSteps takes the hit at the cost of each step, and checks its decisions.
func (s *store) expectSteps(h ratelimit.Hit, steps []step) {
	s.t.Helper()
	for _, step := range steps {
		h.Cost = step.cost
		s.expect(h, step.allowed, step.left)
	}
}

// testRefunds checks that a hit passes and is charged if its cost is left, that a refused hit charges
// nothing, and that a hit of negative cost refunds units, up to the full quota.
func testRefunds(t *testing.T, s *store) {
	for _, l := range Limits("", 3) {
		s.expectSteps(ratelimit.Hit{Limit: l, Key: "k"}, []step{{cost: -1, allowed: true, left: 3},
			{cost: 3, allowed: true}, {cost: -1, allowed: true, left: 1}, {cost: 2, left: 1},
			{cost: 1, allowed: true}, {cost: -ratelimit.MaxEvents, allowed: true, left: 3},
			{cost: 3, allowed: true}, {cost: -1 << 63, allowed: true, left: 3}})
	}
}

// testPeeking checks that a peek gets the decision that a hit of its cost would get, charges nothing, and
// does not subtract its cost from Remaining.
func testPeeking(t *testing.T, s *store) {
	for _, l := range Limits("", 3) {
		peek := ratelimit.Hit{Limit: l, Key: "k", Cost: 2, Peek: true}
		s.expectRemaining(peek, 3)
		s.expect(peek, true, 3)
		s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: 2}, true, 1)
		s.expectRemaining(peek, 1)
		d := s.expect(peek, false, 1)
		taken := s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: 2}, false, 1)
		if difference := d.RetryAfter - taken.RetryAfter; difference < 0 || difference > timeout {
			t.Errorf("%s: RetryAfter of a peek is %v, want about the refusal's %v", l.Prefix, d.RetryAfter,
				taken.RetryAfter)
		}
		peek.Cost = 1
		s.expect(peek, true, 1)
		s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: 1}, true, 0)
		s.expect(peek, false, 0)
		s.expectRemaining(peek, 0)
	}
}

// testMoreThanTheQuota checks that a cost above the full quota is refused with RetryAfter Never.
func testMoreThanTheQuota(t *testing.T, s *store) {
	for _, l := range Limits("", 3) {
		expectNever := func(cost, remaining int64, peek bool) {
			t.Helper()
			d := s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: cost, Peek: peek}, false, remaining)
			if d.RetryAfter != ratelimit.Never {
				t.Errorf("%s, cost %d of 3: RetryAfter is %v, want Never", l.Prefix, cost, d.RetryAfter)
			}
		}
		for _, cost := range []int64{4, 1 << 62, 1<<63 - 1} {
			expectNever(cost, 3, false)
		}
		s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: 3}, true, 0)
		expectNever(4, 0, true)
	}
}

// testReset checks that a reset restores the full quotas of its hits, and of no other key.
func testReset(t *testing.T, s *store) {
	var hits []ratelimit.Hit
	for _, l := range Limits("", 3) {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 3},
			ratelimit.Hit{Limit: l, Key: "secret", Secret: true, Cost: 3})
	}
	for _, h := range hits {
		s.expect(h, true, 0)
		s.expect(h, false, 0)
		other := h
		other.Key += "2"
		s.expect(other, true, 0)
	}
	// A reset uses only Limit, Key and Secret.
	reset := append([]ratelimit.Hit(nil), hits...)
	for i := range reset {
		reset[i].Cost = int64(i) - 1
	}
	if err := s.Reset(t.Context(), timeout, reset); err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		s.expect(h, true, 0)
		h.Key += "2"
		s.expect(h, false, 0)
	}
	if err := s.Reset(t.Context(), timeout,
		[]ratelimit.Hit{{Limit: hits[0].Limit, Key: "never seen"}}); err != nil {
		t.Errorf("a reset of a key without a row: error %v, want none", err)
	}
}

// testKeys checks that each of OddKeys has its own row, in a request by itself and in a request with all of
// them.
func testKeys(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "keys {\"\\,'", Events: 1, Window: time.Hour}
	for pass := range 2 {
		for i, key := range OddKeys() {
			if d := s.take(ratelimit.Hit{Limit: l, Key: key, Cost: 1})[0]; d.Allowed != (pass == 0) {
				t.Fatalf("key %d, %.20q, pass %d: allowed %v, want %v", i, key, pass, d.Allowed, pass == 0)
			}
		}
	}
	// After a reset of all keys, one request takes all of them.
	var hits []ratelimit.Hit
	for _, key := range OddKeys() {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 1})
	}
	if err := s.Reset(t.Context(), timeout, hits); err != nil {
		t.Fatal(err)
	}
	for i, d := range s.take(hits...) {
		if !d.Allowed || d.Remaining != 0 || hits[i].Key != OddKeys()[i] {
			t.Fatalf("key %d, %.20q, in one request: got %+v, want it allowed", i, hits[i].Key, d)
		}
	}
}

// testLimitsHaveOwnRows checks that limits that differ in Prefix, CountedAs or Durable have different rows
// for the same key, and that a key, the same key as a secret, and its digest have different rows.
func testLimitsHaveOwnRows(t *testing.T, s *store) {
	base := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Hour}
	durable, prefix := base, base
	durable.Durable, durable.SynchronousCommit = true, true
	prefix.Prefix = "P"
	async := durable
	async.SynchronousCommit = false
	for i, h := range []ratelimit.Hit{
		{Limit: &base, Key: "k", Cost: 3}, {Limit: &durable, Key: "k", Cost: 3},
		{Limit: &prefix, Key: "k", Cost: 3},
		{Limit: &base, Key: "k", Secret: true, Cost: 3},
		{Limit: &base, Key: ratelimit.DigestKey("k"), Cost: 3},
	} {
		if d := s.take(h)[0]; !d.Allowed {
			t.Errorf("hit %d shares a row with another: got %+v, want it allowed", i, d)
		}
	}
	// SynchronousCommit does not select another row.
	s.expect(ratelimit.Hit{Limit: &async, Key: "k", Cost: 1}, false, 0)
	// CountedAs names the row in place of the prefix.
	renamed, other := base, base
	renamed.Prefix, renamed.CountedAs, other.CountedAs = "new", "p", "q"
	s.expect(ratelimit.Hit{Limit: &renamed, Key: "k", Cost: 1}, false, 0)
	s.expect(ratelimit.Hit{Limit: &other, Key: "k", Cost: 3}, true, 0)
}

// testIndependentHits checks that an Independent hit is charged even if the request is refused, and refuses
// no request.
func testIndependentHits(t *testing.T, s *store) {
	for _, durable := range []bool{false, true} {
		for _, l := range Limits("a", 3) {
			enforced, other, trial := *l, *l, *l
			enforced.Durable, other.Durable, trial.Durable = durable, durable, durable
			// With many hits, the row would get a lease, so each of the limits has its own prefix.
			enforced.Prefix = fmt.Sprint(l.Prefix, durable)
			other.Prefix, trial.Prefix = "other"+enforced.Prefix, "trial"+enforced.Prefix
			other.Events = 2
			hits := []ratelimit.Hit{
				{Limit: &trial, Key: "k", Cost: 1, Independent: true}, {Limit: &enforced, Key: "k", Cost: 1},
				{Limit: &other, Key: "k", Cost: 1},
				{Limit: &trial, Key: "second", Cost: 2, Independent: true},
			}
			type outcome struct {
				allowed bool
				left    int64
			}
			for n, want := range [][4]outcome{ // of each hit
				{{true, 2}, {true, 2}, {true, 1}, {true, 1}},
				{{true, 1}, {true, 1}, {true, 0}, {false, 1}},
				{{true, 0}, {true, 1}, {false, 0}, {false, 1}},
				{{false, 0}, {true, 1}, {false, 0}, {false, 1}},
			} {
				for i, d := range s.take(hits...) {
					got := outcome{d.Allowed, d.Remaining}
					if d.Source == ratelimit.Undecided && !hits[i].Independent {
						got.left = want[i].left // without a decision, Remaining is 0
					}
					if got != want[i] {
						t.Fatalf("%s, request %d, hit %d: got %+v, want %+v", l.Prefix, n+1, i, got, want[i])
					}
				}
			}
			alone := s.expectAll([]ratelimit.Hit{{Limit: &trial, Key: "third", Cost: 3, Independent: true},
				{Limit: &trial, Key: "fourth", Cost: 4, Independent: true}}, "allowed 0, refused 3")
			if alone[1].RetryAfter != ratelimit.Never {
				t.Fatalf("%s: a cost of 4: RetryAfter %v, want Never", l.Prefix, alone[1].RetryAfter)
			}
		}
	}
}
