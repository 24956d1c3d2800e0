package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// testSeveralLimits checks that a request passes if each of its hits would pass. Otherwise it charges
// nothing.
func testSeveralLimits(t *testing.T, s *store) {
	for _, l := range Limits("a", 3) {
		for _, other := range Limits("b", 3) {
			key := l.Prefix + other.Prefix
			hits := []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}, {Limit: other, Key: key, Cost: 2}}
			s.expectAll(hits, "allowed 2, allowed 1")
			// The second limit has too few units left, so the first one is not charged either.
			if d := s.take(hits...); !d[0].Allowed || d[1].Allowed {
				t.Fatalf("%s: got %+v, want a refusal by the second", key, d)
			}
			s.expectRemaining(hits[0], 2)
			hits[1].Cost = 4
			if d := s.take(hits...); d[1].Allowed || d[1].RetryAfter != ratelimit.Never {
				t.Fatalf("%s: got %+v, want a refusal with RetryAfter Never", key, d)
			}
			s.expectRemaining(hits[0], 2)
			// A peek also refuses the request.
			hits[1] = ratelimit.Hit{Limit: other, Key: key, Cost: 2, Peek: true}
			if d := s.take(hits...); d[1].Allowed {
				t.Fatalf("%s: got %+v, want a refusal by the peek", key, d)
			}
			s.expectRemaining(hits[0], 2)
			s.expectRemaining(hits[1], 1)
			hits[1].Cost = 1
			s.expectAll(hits, "allowed 1, allowed 1")
		}
	}
}

// expectAll takes hits as one request, and compares the decisions with want. want has the outcome and the
// remaining units of each hit, as in "allowed 2, refused 1".
func (s *store) expectAll(hits []ratelimit.Hit, want string) []ratelimit.Decision {
	s.t.Helper()
	var got []string
	decisions := s.take(hits...)
	for _, d := range decisions {
		outcome := "refused"
		if d.Allowed {
			outcome = "allowed"
		}
		got = append(got, fmt.Sprint(outcome, " ", d.Remaining))
	}
	if got := strings.Join(got, ", "); got != want {
		s.t.Fatalf("%s: got %s, want %s", hits[0].Limit.Prefix, got, want)
	}
	return decisions
}

// testRefundBesideRefusal checks that a refund takes effect even if another hit of its request is refused.
func testRefundBesideRefusal(_ *testing.T, s *store) {
	for i, l := range Limits("a", 3) {
		other := Limits("b", 3)[i]
		s.expect(ratelimit.Hit{Limit: l, Key: "k", Cost: 3}, true, 0)
		s.expect(ratelimit.Hit{Limit: other, Key: "k", Cost: 2}, true, 1)
		hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: -2}, {Limit: other, Key: "k", Cost: 2}}
		s.expectAll(hits, "allowed 2, refused 1")
		s.expectRemaining(hits[0], 2)
		hits = []ratelimit.Hit{{Limit: l, Key: "k", Cost: -1}, {Limit: other, Key: "k", Cost: 1}}
		s.expectAll(hits, "allowed 3, allowed 0")
	}
}

// testManyHits checks that a request with 10,000 hits charges all of their rows, or none.
func testManyHits(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "many", Algorithm: ratelimit.TokenBucket, Events: 1, Window: time.Hour}
	hits := make([]ratelimit.Hit, 10000)
	for i := range hits {
		hits[i] = ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
	}
	for i, d := range s.take(hits...) {
		if !d.Allowed || d.Remaining != 0 {
			t.Fatalf("hit %d of %d: got %+v, want it allowed", i, len(hits), d)
		}
	}
	// One row without quota refuses the whole request, and nothing is charged.
	for i := range hits[1:] {
		hits[i+1].Key = fmt.Sprint("other", i)
	}
	for i, d := range s.take(hits...) {
		if d.Allowed != (i != 0) {
			t.Fatalf("hit %d of %d: got %+v, want a refusal by hit 0", i, len(hits), d)
		}
	}
	// If hits are on several shards, the shards that charged their hits refund them in the background.
	for _, h := range []ratelimit.Hit{hits[1], hits[9999]} {
		await.Within(t, timeout, "the refund", func() bool { return s.take(h)[0].Allowed })
		s.expect(h, false, 0)
	}
}

// testWrongHits checks that a request with an invalid hit gets an error that names the field, and charges
// nothing.
func testWrongHits(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 3, Window: time.Hour}
	good := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	for _, test := range []struct {
		wrong     ratelimit.Hit
		decisions int
		field     string
	}{
		{wrong: ratelimit.Hit{Limit: l, Key: "other"}, decisions: 2, field: "cost"},
		{wrong: ratelimit.Hit{Limit: l, Key: "other", Cost: 1}, decisions: 1, field: "decisions"},
	} {
		err := s.Take(t.Context(), timeout, []ratelimit.Hit{good, test.wrong},
			make([]ratelimit.Decision, test.decisions))
		if FieldOf(err) != test.field {
			t.Errorf("%+v and %d decisions: error %v, want a FieldError for %s", test.wrong, test.decisions,
				err, test.field)
		}
	}
	err := s.Reset(t.Context(), timeout, []ratelimit.Hit{good, {Key: "other"}})
	if FieldOf(err) != "hit" {
		t.Errorf("a reset without a limit: error %v, want a FieldError for hit", err)
	}
	s.expectRemaining(good, 3)
}
