// Package conformance holds the tests that every ratelimit.Store and every
// ratelimit.DB must pass, wherever its code lies and however it runs.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// timeout is for decisions that nobody keeps waiting: long, as machines that
// run tests are busy.
const timeout = 20 * time.Second

// OddKeys are keys that are easily mistaken for something else, or for each
// other: by Postgres, by the text form of its arrays, by a client.
func OddKeys() []string {
	return []string{
		"", " ", "a", "A", "ä", "a\u0308", "\x00", "a\x00", "a\x00b", "\xff", "\xc3(", "\xed\xa0\x80", "\U0010ffff", "\u200b", "日本語", "👩‍👩‍👧‍👦",
		"NULL", "null", `"NULL"`, "{}", "{a,b}", "{", "}", ",", `"`, `\`, `\\`, `\n`, "\n", "\r\n", "\t", "'", "''", "$1", "%s", ";", "--", "\u202e",
		"sha256:", ratelimit.DigestKey(""), ratelimit.DigestKey("a"), strings.Repeat("k", ratelimit.MaxKey), strings.Repeat("k", ratelimit.MaxKey+1),
		strings.Repeat("ä", ratelimit.MaxKey/2), strings.Repeat("k", 1<<20),
	}
}

// Algorithms are limits of 3 in an hour, or on the calendar a year: one for each
// way to count.
func Algorithms(prefix string) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
		limits = append(limits, &ratelimit.Limit{Prefix: prefix + a.String(), Algorithm: a, Events: 3, Window: time.Hour})
	}
	return append(limits, &ratelimit.Limit{Prefix: prefix + "calendar", Algorithm: ratelimit.FixedWindow, Events: 3, Calendar: ratelimit.Year, Zone: "Asia/Kolkata"})
}

// Store runs the tests of a ratelimit.Store. open returns a new one, without
// rows, which the test closes.
func Store(t *testing.T, open func(t testing.TB) ratelimit.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *store)
	}{
		{"counting", testCounting},
		{"giving back", testGivingBack},
		{"looking", testLooking},
		{"more than the quota", testMoreThanTheQuota},
		{"reset", testReset},
		{"keys", testKeys},
		{"limits are apart", testLimitsAreApart},
		{"several limits", testSeveralLimits},
		{"retry after", testRetryAfter},
		{"many hits", testManyHits},
		{"concurrency", testConcurrency},
		{"ended context", testEndedContext},
		{"closed", testClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &store{t: t, Store: open(t)}
			defer s.Close()
			test.run(t, s)
		})
	}
}

// store is a Store with a test that ends where it fails.
type store struct {
	ratelimit.Store
	t *testing.T
}

// take decides a request.
func (s *store) take(hits ...ratelimit.Hit) []ratelimit.Decision {
	s.t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	if err := s.Take(context.Background(), timeout, hits, decisions); err != nil {
		s.t.Fatal(err)
	}
	return decisions
}

// want decides a hit and checks what came of it.
func (s *store) want(h ratelimit.Hit, allowed bool, remaining int64) ratelimit.Decision {
	s.t.Helper()
	before := time.Now()
	d := s.take(h)[0]
	if d.Allowed != allowed || d.Remaining != remaining || d.Limit != h.Limit.Capacity() {
		s.t.Fatalf("%s, cost %d: %+v, want allowed %v and %d of %d left", h.Limit.Prefix, h.Cost, d, allowed, remaining, h.Limit.Capacity())
	}
	if d.Allowed && d.RetryAfter != 0 || !d.Allowed && d.RetryAfter <= 0 && d.RetryAfter != ratelimit.Never {
		s.t.Fatalf("%s, cost %d: allowed %v, to be tried again after %v", h.Limit.Prefix, h.Cost, d.Allowed, d.RetryAfter)
	}
	if full := remaining == d.Limit; d.Reset.Before(before.Add(-time.Minute)) || !full && !d.Reset.After(before) {
		s.t.Fatalf("%s: %d left, all of it at %v", h.Limit.Prefix, d.Remaining, d.Reset)
	}
	return d
}

// untilGivenBack waits until so much is left of a quota of which a request was
// charged that another limit refused: it is given back a moment later.
func (s *store) untilGivenBack(h ratelimit.Hit, remaining int64) {
	s.t.Helper()
	h.Cost = 0
	for until := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		d := s.take(h)[0]
		if d.Remaining == remaining {
			return
		}
		if d.Remaining > remaining || time.Now().After(until) {
			s.t.Fatalf("%s: %+v, want %d left", h.Limit.Prefix, d, remaining)
		}
	}
}

func testCounting(t *testing.T, s *store) {
	for _, l := range Algorithms("") {
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
		s.want(h, true, 2)
		h.Cost = 2
		s.want(h, true, 0)
		s.want(h, false, 0)
		h.Cost = 1
		s.want(h, false, 0)
		h.Cost = 3
		s.want(h, false, 0)
		h.Key = "another"
		s.want(h, true, 0)
	}
}

func testGivingBack(t *testing.T, s *store) {
	for _, l := range Algorithms("") {
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: -1}
		s.want(h, true, 3) // nothing was taken
		h.Cost = 3
		s.want(h, true, 0)
		h.Cost = -1
		s.want(h, true, 1)
		h.Cost = 2
		s.want(h, false, 1)
		h.Cost = 1
		s.want(h, true, 0)
		h.Cost = -ratelimit.MaxEvents
		s.want(h, true, 3) // never beyond the full quota
		h.Cost = 3
		s.want(h, true, 0)
	}
}

func testLooking(t *testing.T, s *store) {
	for _, l := range Algorithms("") {
		look, peek := ratelimit.Hit{Limit: l, Key: "k"}, ratelimit.Hit{Limit: l, Key: "k", Cost: 2, Peek: true}
		s.want(look, true, 3)
		s.want(peek, true, 3)
		s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 2}, true, 1)
		s.want(look, true, 1)
		d := s.want(peek, false, 1)
		taken := s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 2}, false, 1)
		if difference := d.RetryAfter - taken.RetryAfter; difference < 0 || difference > timeout {
			t.Errorf("%s: a peek says to try again after %v, a refusal then %v", l.Prefix, d.RetryAfter, taken.RetryAfter)
		}
		peek.Cost = 1
		s.want(peek, true, 1)
		peek.Cost = -1
		s.want(peek, true, 1)
		s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 1}, true, 0)
		s.want(look, true, 0)
		s.want(peek, true, 0)
	}
}

func testMoreThanTheQuota(t *testing.T, s *store) {
	for _, l := range Algorithms("") {
		for _, cost := range []int64{4, 1 << 62, 1<<63 - 1} {
			if d := s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: cost}, false, 3); d.RetryAfter != ratelimit.Never {
				t.Errorf("%s: %d of 3 is to be tried again after %v", l.Prefix, cost, d.RetryAfter)
			}
		}
		s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 3}, true, 0)
		if d := s.want(ratelimit.Hit{Limit: l, Key: "k", Cost: 4, Peek: true}, false, 0); d.RetryAfter != ratelimit.Never {
			t.Errorf("%s: 4 of 3 is to be tried again after %v", l.Prefix, d.RetryAfter)
		}
	}
}

func testReset(t *testing.T, s *store) {
	var hits []ratelimit.Hit
	for _, l := range Algorithms("") {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 3}, ratelimit.Hit{Limit: l, Key: "secret", Secret: true, Cost: 3})
	}
	for _, h := range hits {
		s.want(h, true, 0)
		other := h
		other.Key += "2"
		s.want(other, true, 0)
	}
	if err := s.Reset(context.Background(), timeout, hits); err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		s.want(h, true, 0)
		h.Key += "2"
		s.want(h, false, 0)
	}
	if err := s.Reset(context.Background(), timeout, []ratelimit.Hit{{Limit: hits[0].Limit, Key: "never seen"}}); err != nil {
		t.Errorf("resetting a key that was never hit: %v", err)
	}
}

func testKeys(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "keys {\"\\,'", Events: 1, Window: time.Hour}
	for pass := 0; pass < 2; pass++ {
		for i, key := range OddKeys() {
			if d := s.take(ratelimit.Hit{Limit: l, Key: key, Cost: 1})[0]; d.Allowed != (pass == 0) {
				t.Fatalf("key %d, %.20q: allowed %v the %d. time", i, key, d.Allowed, pass+1)
			}
		}
	}
	// As one request, once all have been given back.
	var hits []ratelimit.Hit
	for _, key := range OddKeys() {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 1})
	}
	if err := s.Reset(context.Background(), timeout, hits); err != nil {
		t.Fatal(err)
	}
	for i, d := range s.take(hits...) {
		if !d.Allowed || d.Remaining != 0 || hits[i].Key != OddKeys()[i] {
			t.Fatalf("key %d, %.20q, together: %+v", i, hits[i].Key, d)
		}
	}
}

func testLimitsAreApart(t *testing.T, s *store) {
	base := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Hour}
	durable, prefix := base, base
	durable.Durable, durable.SynchronousCommit = true, true
	prefix.Prefix = "P"
	async := durable
	async.SynchronousCommit = false
	for i, h := range []ratelimit.Hit{
		{Limit: &base, Key: "k", Cost: 3}, {Limit: &durable, Key: "k", Cost: 3}, {Limit: &prefix, Key: "k", Cost: 3},
		{Limit: &base, Key: "k", Secret: true, Cost: 3}, {Limit: &base, Key: ratelimit.DigestKey("k"), Cost: 3},
	} {
		if d := s.take(h)[0]; !d.Allowed {
			t.Errorf("hit %d shares a row with another: %+v", i, d)
		}
	}
	// How a commit is waited for makes no difference to the row.
	s.want(ratelimit.Hit{Limit: &async, Key: "k", Cost: 1}, false, 0)
}

func testSeveralLimits(t *testing.T, s *store) {
	for _, l := range Algorithms("a") {
		for _, other := range Algorithms("b") {
			key := l.Prefix + other.Prefix
			hits := []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}, {Limit: other, Key: key, Cost: 2}}
			if d := s.take(hits...); !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 2 || d[1].Remaining != 1 {
				t.Fatalf("%s: %+v", key, d)
			}
			// The second has too little left, so the first is not charged either.
			if d := s.take(hits...); !d[0].Allowed || d[1].Allowed {
				t.Fatalf("%s: %+v", key, d)
			}
			s.untilGivenBack(hits[0], 2)
			hits[1].Cost = 4
			if d := s.take(hits...); d[1].Allowed || d[1].RetryAfter != ratelimit.Never {
				t.Fatalf("%s: %+v", key, d)
			}
			s.want(ratelimit.Hit{Limit: l, Key: key}, true, 2)
			s.want(ratelimit.Hit{Limit: other, Key: key}, true, 1)
		}
	}
}

func testRetryAfter(t *testing.T, s *store) {
	for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
		l := &ratelimit.Limit{Prefix: a.String(), Algorithm: a, Events: 1, Window: 50 * time.Millisecond}
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
		for i := 0; i < 3; i++ {
			d := s.take(h)[0]
			if !d.Allowed {
				if d.RetryAfter <= 0 || d.RetryAfter > 2*l.Window {
					t.Fatalf("%s: to be tried again after %v", a, d.RetryAfter)
				}
				time.Sleep(d.RetryAfter)
				d = s.take(h)[0]
			}
			if !d.Allowed {
				t.Fatalf("%s: refused when its RetryAfter was over: %+v", a, d)
			}
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
	// One that is used up refuses all of them, and nothing is charged.
	for i := range hits[1:] {
		hits[i+1].Key = fmt.Sprint("other", i)
	}
	for i, d := range s.take(hits...) {
		if d.Allowed != (i != 0) {
			t.Fatalf("hit %d of %d: %+v", i, len(hits), d)
		}
	}
	s.untilGivenBack(hits[1], 1)
	s.untilGivenBack(hits[9999], 1)
	s.want(hits[1], true, 0)
	s.want(hits[9999], true, 0)
}

func testConcurrency(t *testing.T, s *store) {
	limits := Algorithms("")
	for _, l := range limits {
		l.Events = 50
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	admitted := map[string]int64{}
	for i := 0; i < 16; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 60; n++ {
				h := ratelimit.Hit{Limit: limits[(i+n)%len(limits)], Key: fmt.Sprint(n % 2), Cost: 1 + int64(n%3)}
				decisions := make([]ratelimit.Decision, 1)
				if err := s.Take(context.Background(), timeout, []ratelimit.Hit{h}, decisions); err != nil {
					t.Error(err)
					return
				}
				if decisions[0].Allowed {
					mu.Lock()
					admitted[h.Limit.Prefix+h.Key] += h.Cost
					mu.Unlock()
				}
			}
		}()
	}
	group.Wait()
	for _, l := range limits {
		for _, key := range []string{"0", "1"} {
			// A quota of gcra comes back bit by bit: 50 an hour.
			over := admitted[l.Prefix+key] - l.Events
			if over != 0 && (over != 1 || l.Algorithm != ratelimit.GCRA) {
				t.Errorf("%s: %d of %d admitted", l.Prefix+key, admitted[l.Prefix+key], l.Events)
			}
			if d := s.take(ratelimit.Hit{Limit: l, Key: key})[0]; d.Remaining != 0 && (d.Remaining != 1 || l.Algorithm != ratelimit.GCRA) {
				t.Errorf("%s: %d left", l.Prefix+key, d.Remaining)
			}
		}
	}
}

func testEndedContext(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	s.take(ratelimit.Hit{Limit: l, Key: "k"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < 20; i++ {
		if err := s.Take(ctx, timeout, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1)); !errors.Is(err, context.Canceled) {
			t.Fatalf("a decision for a caller who is gone: %v", err)
		}
	}
	if err := s.Reset(ctx, timeout, []ratelimit.Hit{h}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a reset for a caller who is gone: %v", err)
	}
	s.want(h, true, 0)
}

func testClosed(t *testing.T, s *store) {
	l := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	s.take(h)
	s.Close()
	s.Close()
	if err := s.Take(context.Background(), timeout, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1)); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("Take after Close: %v", err)
	}
	if err := s.Reset(context.Background(), timeout, []ratelimit.Hit{h}); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("Reset after Close: %v", err)
	}
}
