package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func testCounting(t *testing.T, s *store) {
	for _, l := range Limits("", 3) {
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
		s.expect(h, true, 2)
		h.Cost = 2
		s.expect(h, true, 0)
		s.expect(h, false, 0)
		h.Cost = 1
		s.expect(h, false, 0)
		h.Cost = 3
		s.expect(h, false, 0)
		h.Key = "another"
		s.expect(h, true, 0)
	}
}

func testRefunds(t *testing.T, s *store) {
	for _, l := range Limits("", 3) {
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: -1}
		s.expect(h, true, 3) // nothing was taken
		h.Cost = 3
		s.expect(h, true, 0)
		h.Cost = -1
		s.expect(h, true, 1)
		h.Cost = 2
		s.expect(h, false, 1)
		h.Cost = 1
		s.expect(h, true, 0)
		h.Cost = -ratelimit.MaxEvents
		s.expect(h, true, 3) // a refund never exceeds the full quota
		h.Cost = 3
		s.expect(h, true, 0)
		h.Cost = -1 << 63
		s.expect(h, true, 3)
	}
}

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
	if err := s.Reset(context.Background(), timeout, reset); err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		s.expect(h, true, 0)
		h.Key += "2"
		s.expect(h, false, 0)
	}
	if err := s.Reset(context.Background(), timeout,
		[]ratelimit.Hit{{Limit: hits[0].Limit, Key: "never seen"}}); err != nil {
		t.Errorf("a reset of a key without a row: error %v, want none", err)
	}
}

func testKeys(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "keys {\"\\,'", Events: 1, Window: time.Hour}
	for pass := 0; pass < 2; pass++ {
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
	if err := s.Reset(context.Background(), timeout, hits); err != nil {
		t.Fatal(err)
	}
	for i, d := range s.take(hits...) {
		if !d.Allowed || d.Remaining != 0 || hits[i].Key != OddKeys()[i] {
			t.Fatalf("key %d, %.20q, in one request: got %+v, want it allowed", i, hits[i].Key, d)
		}
	}
}

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
}

// testIndependentHits checks that an Independent hit is charged even if the request is refused, and refuses
// no request.
func testIndependentHits(t *testing.T, s *store) {
	for _, durable := range []bool{false, true} {
		for _, l := range Limits("a", 3) {
			enforced, other, trial := *l, *l, *l
			enforced.Durable, other.Durable, trial.Durable = durable, durable, durable
			// its own row, because a row with many hits has a lease
			enforced.Prefix = fmt.Sprint(l.Prefix, durable)
			other.Prefix, trial.Prefix = "other"+enforced.Prefix, "trial"+enforced.Prefix
			other.Events = 2
			hits := []ratelimit.Hit{
				{Limit: &trial, Key: "k", Cost: 1, Independent: true}, {Limit: &enforced, Key: "k", Cost: 1},
				{Limit: &other, Key: "k", Cost: 1},
				{Limit: &trial, Key: "second", Cost: 2, Independent: true},
			}
			for n, want := range []struct {
				allowed   [4]bool
				remaining [4]int64
			}{
				{[4]bool{true, true, true, true}, [4]int64{2, 2, 1, 1}},
				{[4]bool{true, true, true, false}, [4]int64{1, 1, 0, 1}},
				{[4]bool{true, true, false, false}, [4]int64{0, 1, 0, 1}},
				{[4]bool{false, true, false, false}, [4]int64{0, 1, 0, 1}},
			} {
				d := s.take(hits...)
				for i := range hits {
					known := d[i].Source != ratelimit.Undecided
					if d[i].Allowed != want.allowed[i] || known && d[i].Remaining != want.remaining[i] ||
						hits[i].Independent && !known {
						t.Fatalf("%s, request %d, hit %d: %+v, want %v and %d left", l.Prefix, n+1, i, d[i],
							want.allowed[i], want.remaining[i])
					}
				}
			}
			alone := s.take(ratelimit.Hit{Limit: &trial, Key: "third", Cost: 3, Independent: true},
				ratelimit.Hit{Limit: &trial, Key: "fourth", Cost: 4, Independent: true})
			if !alone[0].Allowed || alone[0].Remaining != 0 || alone[1].Allowed ||
				alone[1].RetryAfter != ratelimit.Never {
				t.Fatalf("%s: a request of independent hits: got %+v, want each decided by itself",
					l.Prefix, alone)
			}
		}
	}
}
