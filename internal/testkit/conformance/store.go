// Package conformance holds the tests that every ratelimit.Store and every pgdb.DB must pass, and helpers for
// tests of several packages.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// timeout bounds calls that must succeed. It is long because the machine may be busy.
const timeout = time.Minute

// OddKeys returns keys that Postgres, the text form of its arrays or a client may confuse with other values
// or with each other.
func OddKeys() []string {
	return []string{
		"", " ", "a", "A", "ä", "a\u0308", "\x00", "a\x00", "a\x00b", "\xff", "\xc3(", "\xed\xa0\x80",
		"\U0010ffff", "\u200b", "日本語", "👩‍👩‍👧‍👦",
		"NULL", "null", `"NULL"`, "{}", "{a,b}", "{", "}", ",", `"`, `\`, `\\`, `\n`, "\n", "\r\n", "\t", "'",
		"''", "$1", "%s", ";", "--", "\u202e",
		"sha256:", ratelimit.DigestKey(""), ratelimit.DigestKey("a"), strings.Repeat("k", ratelimit.MaxKey),
		strings.Repeat("k", ratelimit.MaxKey+1),
		strings.Repeat("ä", ratelimit.MaxKey/2), strings.Repeat("k", 1<<20),
	}
}

// Leasing marks a store that gets each limit with a lease, if the limit can have one. On a busy machine, a
// lease may end before its units are used. The tests then accept that the store admits fewer units than the
// limit allows, but never more.
type Leasing struct{ ratelimit.Store }

// Store runs the tests of a ratelimit.Store. open returns a new store, which may have rows of other tests.
// The test closes it.
func Store(t *testing.T, open func(t testing.TB) ratelimit.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *store)
	}{
		{"reset", testReset},
		{"keys", testKeys},
		{"limits have their own rows", testLimitsHaveOwnRows},
		{"several limits", testSeveralLimits},
		{"refund beside a refusal", testRefundBesideRefusal},
		{"independent hits", testIndependentHits},
		{"slots", testSlots},
		{"many hits", testManyHits},
		{"wrong hits", testWrongHits},
		{"concurrency", testConcurrency},
		{"ended context", testEndedContext},
		{"closed", testClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &store{t: t, Store: open(t), limits: make(map[*ratelimit.Limit]*ratelimit.Limit)}
			defer s.Close()
			test.run(t, s)
		})
	}
}

// store is a Store with helpers that fail its test.
type store struct {
	ratelimit.Store
	t *testing.T

	mu     sync.Mutex
	limits map[*ratelimit.Limit]*ratelimit.Limit // the copy of each limit that the store gets
}

// Take implements ratelimit.Store.
func (s *store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	return s.Store.Take(ctx, timeout, s.ofTest(hits), decisions)
}

// Reset implements ratelimit.Store.
func (s *store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return s.Store.Reset(ctx, timeout, s.ofTest(hits))
}

// ofTest returns the hits on copies of their limits, with rows that no other test has.
func (s *store) ofTest(hits []ratelimit.Hit) []ratelimit.Hit {
	s.mu.Lock()
	defer s.mu.Unlock()
	hits = slices.Clone(hits)
	for i := range hits {
		l := hits[i].Limit
		if l != nil && s.limits[l] == nil {
			other := *l
			other.Prefix = s.t.Name() + " " + l.Prefix
			if l.CountedAs != "" {
				other.CountedAs = s.t.Name() + " " + l.CountedAs
			}
			leased := other
			leased.Lease = 0.5
			if _, isLeasing := s.Store.(Leasing); isLeasing && leased.Validate() == nil {
				other = leased
			}
			s.limits[l] = &other
		}
		hits[i].Limit = s.limits[l]
	}
	return hits
}

// take takes a request.
func (s *store) take(hits ...ratelimit.Hit) []ratelimit.Decision {
	s.t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	if err := s.Take(s.t.Context(), timeout, hits, decisions); err != nil {
		s.t.Fatal(err)
	}
	return decisions
}

// expect takes a hit, and checks its decision.
func (s *store) expect(h ratelimit.Hit, allowed bool, remaining int64) ratelimit.Decision {
	s.t.Helper()
	before := time.Now()
	d := s.take(h)[0]
	if d.Allowed != allowed || d.Remaining != remaining || d.Quota != h.Limit.Capacity() {
		s.t.Fatalf("%s, cost %d: got %+v, want allowed %v and %d of %d left", h.Limit.Prefix, h.Cost, d,
			allowed, remaining, h.Limit.Capacity())
	}
	if d.Allowed != (d.RetryAfter == 0) || d.RetryAfter < 0 {
		s.t.Fatalf("%s, cost %d: got %+v, want a RetryAfter unless allowed", h.Limit.Prefix, h.Cost, d)
	}
	switch full := remaining == d.Quota; {
	case d.RetryAfter == ratelimit.Never:
		if !d.Reset.IsZero() {
			s.t.Fatalf("%s, cost %d, RetryAfter Never: Reset %v, want zero", h.Limit.Prefix, h.Cost, d.Reset)
		}
	case d.Reset.Before(before.Add(-time.Minute)) || !full && !d.Reset.After(before):
		s.t.Fatalf("%s: %d left, Reset %v, want a later time", h.Limit.Prefix, d.Remaining, d.Reset)
	case !d.Allowed && d.DecidedAt != 0 && d.Reset.UnixMicro() != d.DecidedAt+d.RetryAfter.Microseconds():
		s.t.Fatalf("%s: got %+v, want Reset = DecidedAt + RetryAfter", h.Limit.Prefix, d)
	}
	return d
}

// FieldOf returns the name in a FieldError, or "" for another error.
func FieldOf(err error) string {
	if field := (*ratelimit.FieldError)(nil); errors.As(err, &field) {
		return field.Field
	}
	return ""
}

// expectRemaining checks that remaining units of a hit's quota are left.
func (s *store) expectRemaining(h ratelimit.Hit, remaining int64) {
	s.t.Helper()
	h.Peek, h.Cost = true, 1
	s.expect(h, remaining > 0, remaining)
}

// testConcurrency checks that callers that compete for a quota get all of it, and no more. The order of the
// calls decides how many units remain at the end. They are always fewer than the lowest refused cost, which
// they could have paid otherwise.
func testConcurrency(t *testing.T, s *store) {
	limits := Limits("", 50)
	var mu sync.Mutex
	var group sync.WaitGroup
	admitted := map[string]int64{}
	refused := map[string]int64{} // the lowest refused cost
	for i := range 16 {
		group.Go(func() {
			for n := range 60 {
				h := ratelimit.Hit{Limit: limits[(i+n)%len(limits)], Key: fmt.Sprint(n % 2),
					Cost: 1 + int64(n%3)}
				decisions := make([]ratelimit.Decision, 1)
				if err := s.Take(t.Context(), timeout, []ratelimit.Hit{h}, decisions); err != nil {
					t.Error(err)
					return
				}
				name := h.Limit.Prefix + h.Key
				mu.Lock()
				if decisions[0].Allowed {
					admitted[name] += h.Cost
				} else if lowest, ok := refused[name]; !ok || h.Cost < lowest {
					refused[name] = h.Cost
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	_, loses := s.Store.(Leasing)
	for _, l := range limits {
		for _, key := range []string{"0", "1"} {
			name := l.Prefix + key
			left := s.take(ratelimit.Hit{Limit: l, Key: key, Cost: 1, Peek: true})[0].Remaining
			extra := admitted[name] + left - l.Events
			isRefill := extra == 1 && l.Algorithm == ratelimit.GCRA // a unit in 72 seconds
			isLoss := extra < 0 && loses
			if extra != 0 && !isRefill && !isLoss {
				t.Errorf("%s: %d admitted and %d left, want a sum of %d", name, admitted[name], left,
					l.Events)
			}
			if refused[name] == 0 || left-max(extra, 0) >= refused[name] {
				t.Errorf("%s: %d are left, want fewer than the refused cost %d", name, left, refused[name])
			}
		}
	}
}

// testEndedContext checks that calls with an ended context return its error, and charge nothing.
func testEndedContext(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	s.expectRemaining(h, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		err := s.Take(ctx, timeout, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1))
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Take with an ended context: error %v, want Canceled", err)
		}
	}
	if err := s.Reset(ctx, timeout, []ratelimit.Hit{h}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Reset with an ended context: error %v, want Canceled", err)
	}
	s.expect(h, true, 0)
}

// testClosed checks that calls after Close return ErrClosed.
func testClosed(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	s.take(h)
	s.Close()
	s.Close()
	taken := s.Take(t.Context(), timeout, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1))
	reset := s.Reset(t.Context(), timeout, []ratelimit.Hit{h})
	if !errors.Is(taken, ratelimit.ErrClosed) || !errors.Is(reset, ratelimit.ErrClosed) {
		t.Errorf("after Close: Take returns %v and Reset %v, want ErrClosed", taken, reset)
	}
}
