package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// open returns a store that the test closes.
func open(t testing.TB, o memory.Options) *memory.Store {
	t.Helper()
	store, err := memory.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// take decides a request.
func take(t testing.TB, store *memory.Store, hits ...ratelimit.Hit) []ratelimit.Decision {
	t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(context.Background(), time.Second, hits, decisions); err != nil {
		t.Fatal(err)
	}
	return decisions
}

func TestMemory(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store { return open(t, memory.Options{}) })
}

func TestOptionsOutOfRange(t *testing.T) {
	var field *ratelimit.FieldError
	if store, err := memory.New(memory.Options{Capacity: -1}); !errors.As(err, &field) ||
		field.Field != "Capacity" || store != nil {
		t.Errorf("Capacity -1: %v", err)
	}
}

// TestKeysAreBounded: beyond Capacity a new key displaces another.
func TestKeysAreBounded(t *testing.T) {
	for _, most := range []int{1, 100, 5000} {
		store := open(t, memory.Options{Capacity: most})
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
		bound := most + most/100 + most/1024 // several stripes keep it nearly
		for i := range 3 * most {
			h := ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
			if d := take(t, store, h)[0]; !d.Allowed || d.Remaining != 1 {
				t.Fatalf("key %d: %+v", i, d)
			}
			if d := take(t, store, h)[0]; d.Remaining != 0 {
				t.Fatalf("key %d, again: %+v", i, d)
			}
			if n := store.Len(); i%50 == 0 && n > bound {
				t.Fatalf("%d keys of at most %d", n, most)
			}
		}
		if n := store.Len(); n < most*95/100 || n > bound {
			t.Errorf("%d keys, want %d", n, most)
		}
	}
}

// TestExpiredKeysAreDisplacedFirst: in a full store a key that is in use stays, and a key that
// has expired goes.
func TestExpiredKeysAreDisplacedFirst(t *testing.T) {
	short := &ratelimit.Limit{Prefix: "short", Events: 1, Window: time.Millisecond}
	live := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "live", Algorithm: ratelimit.FixedWindow, Events: 2,
		Window: time.Hour}, Cost: 1}
	for place := range 10 {
		c := conformance.NewClock()
		store := open(t, memory.Options{Capacity: 10, Now: c.Now})
		for i := range 10 {
			h := live
			if i != place {
				h = ratelimit.Hit{Limit: short, Key: fmt.Sprint(i), Cost: 1}
			}
			take(t, store, h)
		}
		c.Micro += 2000 // all but one have expired
		take(t, store, ratelimit.Hit{Limit: short, Key: "new", Cost: 1})
		if d := take(t, store, live)[0]; d.Remaining != 0 {
			t.Errorf("the live key, the %d. of ten, was displaced: %+v", place+1, d)
		}
	}
}

// TestKeysWithoutChargesAreNotKept: a peek, a refund and a refusal leave no key behind.
func TestKeysWithoutChargesAreNotKept(t *testing.T) {
	store := open(t, memory.Options{Capacity: 100})
	for _, l := range conformance.Limits("", 2) {
		take(t, store, ratelimit.Hit{Limit: l, Key: "a", Cost: 1, Peek: true})
		take(t, store, ratelimit.Hit{Limit: l, Key: "b", Cost: -1})
		take(t, store, ratelimit.Hit{Limit: l, Key: "c", Cost: 3})
		take(t, store, ratelimit.Hit{Limit: l, Key: "d", Cost: 1}, ratelimit.Hit{Limit: l, Key: "e", Cost: 3})
	}
	if n := store.Len(); n != 0 {
		t.Errorf("%d keys that were charged nothing", n)
	}
}

// TestManyExpiredKeysLeaveNothing: when most keys have expired, they are gone, and their memory is free.
func TestManyExpiredKeysLeaveNothing(t *testing.T) {
	for _, most := range []int{0, 1000} { // 64 stripes, and one
		c := conformance.NewClock()
		store := open(t, memory.Options{Capacity: most, Now: c.Now})
		l := &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Second}
		conformance.Keeps(t, 10<<20, store, func() {
			for i := range 200_000 {
				take(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1})
			}
			c.Micro += 10 * conformance.Second
			for i := range 80_000 {
				take(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint("k", i%5000), Cost: 1})
			}
		})
		if n := store.Len(); n > 6000 {
			t.Errorf("%d keys are left of 200,000 that have expired", n)
		}
	}
}

// TestKeysAreCopied: a store does not keep the request alive that a key is a part of.
func TestKeysAreCopied(t *testing.T) {
	store := open(t, memory.Options{})
	l := &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Hour}
	conformance.Keeps(t, 20<<20, store, func() {
		for i := range 200 {
			request := strings.Repeat("x", 1<<20) + fmt.Sprint(i)
			take(t, store, ratelimit.Hit{Limit: l, Key: request[1<<20-10:], Cost: 1})
		}
	})
	if n := store.Len(); n != 200 {
		t.Errorf("%d keys, want 200", n)
	}
}

// TestSeveralKeysAreChargedTogether: many goroutines charge several keys at once, in
// different orders. Each request is charged on all its keys or on none, so all keys have
// the same left.
func TestSeveralKeysAreChargedTogether(t *testing.T) {
	store := open(t, memory.Options{}) // the keys are in different stripes
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}
	scarce := &ratelimit.Limit{Prefix: "scarce", Algorithm: ratelimit.FixedWindow, Events: 100,
		Window: time.Hour}
	var passed atomic.Int64
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for range 20 {
				hits := []ratelimit.Hit{{Limit: scarce, Key: "scarce", Cost: 1}}
				for key := range 20 {
					hits = append(hits, ratelimit.Hit{Limit: l, Key: fmt.Sprint((key + i) % 20), Cost: 3})
				}
				all := true
				for _, d := range take(t, store, hits...) {
					all = all && d.Allowed
				}
				if all {
					passed.Add(1)
				}
				for _, d := range take(t, store, hits[1:]...)[1:] {
					if d.Remaining%3 != 1 {
						t.Errorf("%d left", d.Remaining)
					}
				}
				refund := append([]ratelimit.Hit(nil), hits[1:]...)
				for i := range refund {
					refund[i].Cost = -3
				}
				take(t, store, refund...)
			}
		})
	}
	group.Wait()
	if passed.Load() != 100 {
		t.Errorf("%d requests passed, want 100", passed.Load())
	}
	for key := range 20 {
		if d := take(t, store,
			ratelimit.Hit{Limit: l, Key: fmt.Sprint(key), Cost: 1, Peek: true})[0]; d.Remaining != 700 {
			t.Errorf("key %d: %d left of 1000 after 100 requests of 3", key, d.Remaining)
		}
	}
}
