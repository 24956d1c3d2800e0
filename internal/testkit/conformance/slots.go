package conformance

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// InFlight returns a limit of concurrent requests.
func InFlight(prefix string, events int64) *ratelimit.Limit {
	return &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.InFlight, Events: events}
}

// testSlots checks that a request holds its slots from the decision on its hit until their release.
func testSlots(t *testing.T, s *store) {
	l := InFlight("slots", 3)
	hit := func(cost int64) ratelimit.Hit {
		return ratelimit.Hit{Limit: l, Key: "k", Cost: cost, Hold: &ratelimit.Hold{}}
	}
	awaitFree := func(want int64) {
		t.Helper()
		s.awaitRemaining(ratelimit.Hit{Limit: l, Key: "k"}, want)
	}
	single, double := hit(1), hit(2)
	s.expect(single, true, 2)
	s.expect(double, true, 0)
	for range 2 { // a store that remembers refusals does not remember this one
		if d := s.expect(hit(1), false, 0); d.RetryAfter != time.Second {
			t.Errorf("RetryAfter is %v, want 1s", d.RetryAfter)
		}
	}
	double.Hold.Release()
	double.Hold.Release() // the second release has no effect
	awaitFree(2)
	repeated := hit(2)
	s.expect(repeated, true, 0)
	single.Hold.Release()
	repeated.Hold.Release()
	awaitFree(3)

	// A slot that is released before the decision on its hit is free immediately.
	early := hit(3)
	early.Hold.Release()
	s.take(early)
	awaitFree(3)

	// A request on several limits takes all of its slots and units or none. An Independent hit is decided by
	// itself.
	window := &ratelimit.Limit{Prefix: "window", Algorithm: ratelimit.FixedWindow, Events: 2,
		Window: time.Hour}
	for i := range 3 {
		h := hit(1)
		d := s.take(ratelimit.Hit{Limit: window, Key: "k", Cost: 1}, h)
		if d[0].Allowed != (i < 2) {
			t.Errorf("request %d: got %+v, want allowed %v", i, d, i < 2)
		}
		defer h.Hold.Release()
	}
	awaitFree(1)
	independent := hit(1)
	independent.Independent = true
	s.take(ratelimit.Hit{Limit: window, Key: "k", Cost: 1}, independent)
	awaitFree(0)
	independent.Hold.Release()
	awaitFree(1)
	if err := s.Reset(t.Context(), timeout, []ratelimit.Hit{{Limit: l, Key: "k"}}); err != nil {
		t.Fatal(err)
	}
	awaitFree(3)

	// The limit bounds the concurrent requests, and all slots are free afterwards.
	var running, passed atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(timeout)
	for range 16 {
		group.Go(func() {
			for i := 0; i < 100 || passed.Load() < 20 && time.Now().Before(end); i++ {
				h := ratelimit.Hit{Limit: l, Key: "busy", Cost: 1, Hold: &ratelimit.Hold{}}
				decisions := make([]ratelimit.Decision, 1)
				if err := s.Take(t.Context(), timeout, []ratelimit.Hit{h}, decisions); err != nil {
					t.Error(err)
				}
				if decisions[0].Allowed {
					if n := running.Add(1); n > l.Events {
						t.Errorf("%d requests run concurrently, want at most %d", n, l.Events)
					}
					passed.Add(1)
					time.Sleep(time.Millisecond) // the request
					running.Add(-1)
				}
				h.Hold.Release()
			}
		})
	}
	group.Wait()
	if n := passed.Load(); n < 20 {
		t.Errorf("%d requests passed, want at least 20", n)
	}
	s.awaitRemaining(ratelimit.Hit{Limit: l, Key: "busy"}, 3)
}

// awaitRemaining waits until remaining units of a hit's quota are left.
func (s *store) awaitRemaining(h ratelimit.Hit, remaining int64) {
	s.t.Helper()
	h.Peek, h.Cost = true, 1
	await.Within(s.t, timeout, fmt.Sprint(remaining, " are left"),
		func() bool { return s.take(h)[0].Remaining == remaining })
}
