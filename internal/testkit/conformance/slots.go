package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// InFlight returns a limit of so many requests at once.
func InFlight(prefix string, events int64) *ratelimit.Limit {
	return &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.InFlight, Events: events}
}

// testSlots tests limits InFlight.
func testSlots(t *testing.T, s *store) {
	l := InFlight("slots", 3)
	hit := func(cost int64) ratelimit.Hit {
		return ratelimit.Hit{Limit: l, Key: "k", Cost: cost, Slot: &ratelimit.Slot{}}
	}
	free := func(want int64) {
		t.Helper()
		s.awaitLeft(ratelimit.Hit{Limit: l, Key: "k"}, want)
	}
	one, two := hit(1), hit(2)
	s.want(one, true, 2)
	s.want(two, true, 0)
	for range 2 { // the refusal is not remembered
		if d := s.want(hit(1), false, 0); d.RetryAfter != time.Second {
			t.Errorf("RetryAfter %v", d.RetryAfter)
		}
	}
	two.Slot.Release()
	two.Slot.Release() // twice is once
	free(2)
	again := hit(2)
	s.want(again, true, 0)
	one.Slot.Release()
	again.Slot.Release()
	free(3)

	// A slot that is released before its hit is decided is free at once.
	early := hit(3)
	early.Slot.Release()
	s.take(early)
	free(3)

	// With other limits it is all or nothing, and a hit apart is by itself.
	window := &ratelimit.Limit{Prefix: "window", Algorithm: ratelimit.FixedWindow, Events: 2,
		Window: time.Hour}
	for i := range 3 {
		h := hit(1)
		d := s.take(ratelimit.Hit{Limit: window, Key: "k", Cost: 1}, h)
		if d[0].Allowed != (i < 2) {
			t.Errorf("request %d: %+v", i, d)
		}
		defer h.Slot.Release()
	}
	free(1)
	apart := hit(1)
	apart.Apart = true
	s.take(ratelimit.Hit{Limit: window, Key: "k", Cost: 1}, apart)
	free(0)
	apart.Slot.Release()
	free(1)
	if err := s.Reset(context.Background(), timeout, []ratelimit.Hit{{Limit: l, Key: "k"}}); err != nil {
		t.Fatal(err)
	}
	free(3)

	for _, wrong := range []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1},
		{Limit: l, Key: "k", Cost: -1, Slot: &ratelimit.Slot{}}} {
		var field *ratelimit.FieldError
		if err := s.Take(context.Background(), timeout, []ratelimit.Hit{wrong},
			make([]ratelimit.Decision, 1)); !errors.As(err, &field) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}

	// Never more than the limit run at once, and all of it can be used after.
	var running, most, passed atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(timeout)
	for range 16 {
		group.Go(func() {
			for i := 0; i < 100 || passed.Load() < 20 && time.Now().Before(end); i++ {
				h := ratelimit.Hit{Limit: l, Key: "busy", Cost: 1, Slot: &ratelimit.Slot{}}
				decisions := make([]ratelimit.Decision, 1)
				if err := s.Take(context.Background(), timeout, []ratelimit.Hit{h}, decisions); err != nil {
					t.Error(err)
				}
				if decisions[0].Allowed {
					now := running.Add(1)
					for before := most.Load(); now > before &&
						!most.CompareAndSwap(before, now); before = most.Load() {
					}
					passed.Add(1)
					time.Sleep(time.Millisecond) // the request
					running.Add(-1)
				}
				h.Slot.Release()
			}
		})
	}
	group.Wait()
	if most.Load() > 3 || passed.Load() < 20 {
		t.Errorf("%d at once, %d passed", most.Load(), passed.Load())
	}
	s.awaitLeft(ratelimit.Hit{Limit: l, Key: "busy"}, 3)
}

// awaitLeft waits until so much is left of a hit's quota.
func (s *store) awaitLeft(h ratelimit.Hit, remaining int64) {
	s.t.Helper()
	h.Peek, h.Cost = true, 1
	await.Within(s.t, timeout, fmt.Sprint(remaining, " are left"),
		func() bool { return s.take(h)[0].Remaining == remaining })
}
