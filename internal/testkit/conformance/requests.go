package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The tests of requests of several hits, of none, and of wrong ones.

func testSeveralLimits(t *testing.T, s *store) {
	for _, l := range Limits("a", 3) {
		for _, other := range Limits("b", 3) {
			key := l.Prefix + other.Prefix
			hits := []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}, {Limit: other, Key: key, Cost: 2}}
			if d := s.take(hits...); !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 2 ||
				d[1].Remaining != 1 {
				t.Fatalf("%s: %+v", key, d)
			}
			// The second has too little left, so the first is not charged either.
			if d := s.take(hits...); !d[0].Allowed || d[1].Allowed {
				t.Fatalf("%s: %+v", key, d)
			}
			s.left(hits[0], 2)
			hits[1].Cost = 4
			if d := s.take(hits...); d[1].Allowed || d[1].RetryAfter != ratelimit.Never {
				t.Fatalf("%s: %+v", key, d)
			}
			s.left(hits[0], 2)
			// A hit that only asks refuses the request too.
			hits[1] = ratelimit.Hit{Limit: other, Key: key, Cost: 2, Peek: true}
			if d := s.take(hits...); d[1].Allowed {
				t.Fatalf("%s: %+v", key, d)
			}
			s.left(hits[0], 2)
			s.left(hits[1], 1)
			hits[1].Cost = 1
			if d := s.take(hits...); !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 1 ||
				d[1].Remaining != 1 {
				t.Fatalf("%s: %+v", key, d)
			}
		}
	}
}

// testRefundBesideRefusal: a refund takes effect although another hit of its request is
// refused.
func testRefundBesideRefusal(t *testing.T, s *store) {
	for i, l := range Limits("a", 3) {
		other := Limits("b", 3)[i]
		s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 3}, true, 0)
		s.want(ratelimit.Hit{Limit: other, Key: "k", Cost: 2}, true, 1)
		hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: -2}, {Limit: other, Key: "k", Cost: 2}}
		if d := s.take(hits...); !d[0].Allowed || d[1].Allowed || d[0].Remaining != 2 || d[1].Remaining != 1 {
			t.Errorf("%s: %+v", l.Prefix, d)
		}
		s.left(hits[0], 2)
		hits = []ratelimit.Hit{{Limit: l, Key: "k", Cost: -1}, {Limit: other, Key: "k", Cost: 1}}
		if d := s.take(hits...); !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 3 ||
			d[1].Remaining != 0 {
			t.Errorf("%s: %+v", l.Prefix, d)
		}
	}
}

func testManyHits(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "many", Algorithm: ratelimit.TokenBucket, Events: 1, Window: time.Hour}
	hits := make([]ratelimit.Hit, 10000)
	for i := range hits {
		hits[i] = ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
	}
	for i, d := range s.take(hits...) {
		if !d.Allowed || d.Remaining != 0 {
			t.Fatalf("hit %d of %d: %+v", i, len(hits), d)
		}
	}
	// One row without quota refuses the whole request, and nothing is charged.
	for i := range hits[1:] {
		hits[i+1].Key = fmt.Sprint("other", i)
	}
	for i, d := range s.take(hits...) {
		if d.Allowed != (i != 0) {
			t.Fatalf("hit %d of %d: %+v", i, len(hits), d)
		}
	}
	// Where rows are in shards, the others hold what they have charged for a moment.
	for _, h := range []ratelimit.Hit{hits[1], hits[9999]} {
		await.Within(t, timeout, "the charge to be given back", func() bool { return s.take(h)[0].Allowed })
		s.want(h, false, 0)
	}
}

func testNoHits(t *testing.T, s *store) {
	if err := s.Take(context.Background(), timeout, nil, nil); err != nil {
		t.Errorf("Take: %v", err)
	}
	if err := s.Reset(context.Background(), timeout, nil); err != nil {
		t.Errorf("Reset: %v", err)
	}
}

// testWrongHits: a wrong hit is an error that names the field, and nothing is charged.
func testWrongHits(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 3, Window: time.Hour}
	good := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	for _, test := range []struct {
		wrong     ratelimit.Hit
		decisions int
		field     string
	}{
		{ratelimit.Hit{Limit: l, Key: "other"}, 2, "cost"},
		{ratelimit.Hit{Limit: l, Key: "other", Peek: true}, 2, "cost"},
		{ratelimit.Hit{Limit: l, Key: "other", Cost: -1, Peek: true}, 2, "cost"},
		{ratelimit.Hit{Key: "other", Cost: 1}, 2, "hit"},
		{ratelimit.Hit{Limit: l, Key: "other", Cost: 1}, 1, "decisions"},
		{ratelimit.Hit{Limit: l, Key: "other", Cost: 1}, 3, "decisions"},
	} {
		err := s.Take(context.Background(), timeout, []ratelimit.Hit{good, test.wrong},
			make([]ratelimit.Decision, test.decisions))
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("%+v and %d decisions: %v, want an error of %s", test.wrong, test.decisions,
				err, test.field)
		}
	}
	var field *ratelimit.FieldError
	if err := s.Reset(context.Background(), timeout, []ratelimit.Hit{good, {Key: "other"}}); !errors.As(err,
		&field) || field.Field != "hit" {
		t.Errorf("a reset without a limit: %v", err)
	}
	s.left(good, 3)
}

// testOneRowTwice: two hits of one request must not share a row. If they do, the request
// still gets an answer.
func testOneRowTwice(t *testing.T, s *store) {
	for _, costs := range [][2]int64{{1, 1}, {1, 2}, {2, -1}, {4, 1}, {3, 3}} {
		l := &ratelimit.Limit{Prefix: fmt.Sprint(costs), Algorithm: ratelimit.FixedWindow, Events: 3,
			Window: time.Hour}
		s.take(ratelimit.Hit{Limit: l, Key: "k", Cost: costs[0]},
			ratelimit.Hit{Limit: l, Key: "k", Cost: costs[1]})
	}
}
