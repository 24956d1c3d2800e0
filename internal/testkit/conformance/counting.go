package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
