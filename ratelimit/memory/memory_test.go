package memory_test

import (
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

// take returns the decisions on a request.
func take(t testing.TB, store *memory.Store, hits ...ratelimit.Hit) []ratelimit.Decision {
	t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(t.Context(), time.Second, hits, decisions); err != nil {
		t.Fatal(err)
	}
	return decisions
}

// A store in memory passes the conformance suite of stores.
func TestMemoryPassesConformance(t *testing.T) {
	conformance.Store(t, func(t testing.TB) ratelimit.Store { return open(t, memory.Options{}) })
}

// New refuses a capacity below 0, with an error that names the field.
func TestOptionsOutOfRange(t *testing.T) {
	store, err := memory.New(memory.Options{Capacity: -1})
	if conformance.FieldOf(err) != "Capacity" || store != nil {
		t.Errorf("Capacity -1: error %v, want a FieldError for Capacity", err)
	}
}

// If the store has Capacity keys, a new key evicts another key, and the requests on it are decided as usual.
func TestKeysAreBounded(t *testing.T) {
	for _, capacity := range []int{1, 100, 5000} {
		store := open(t, memory.Options{Capacity: capacity})
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
		maxKeys := capacity + capacity/100 + capacity/1024 // each stripe rounds its bound up
		for i := range 3 * capacity {
			h := ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
			if d := take(t, store, h)[0]; !d.Allowed || d.Remaining != 1 {
				t.Fatalf("first hit on key %d: %+v, want it allowed with 1 left", i, d)
			}
			if d := take(t, store, h)[0]; d.Remaining != 0 {
				t.Fatalf("second hit on key %d: %+v, want 0 left", i, d)
			}
			if n := store.Len(); i%50 == 0 && n > maxKeys {
				t.Fatalf("Len() = %d after %d keys, want at most %d", n, i+1, maxKeys)
			}
		}
		if n := store.Len(); n < capacity*95/100 || n > maxKeys {
			t.Errorf("Len() = %d, want about %d", n, capacity)
		}
	}
}

// A full store evicts an expired key and keeps a key that is in use.
func TestExpiredKeysAreEvictedFirst(t *testing.T) {
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
			t.Errorf("the live key, number %d of ten: %+v, want it kept with 0 left", place+1, d)
		}
	}
}

// A peek, a refund and a refusal leave no key behind.
func TestKeysWithoutChargesAreNotKept(t *testing.T) {
	store := open(t, memory.Options{Capacity: 100})
	for _, l := range conformance.Limits("", 2) {
		take(t, store, ratelimit.Hit{Limit: l, Key: "a", Cost: 1, Peek: true})
		take(t, store, ratelimit.Hit{Limit: l, Key: "b", Cost: -1})
		take(t, store, ratelimit.Hit{Limit: l, Key: "c", Cost: 3})
		take(t, store, ratelimit.Hit{Limit: l, Key: "d", Cost: 1}, ratelimit.Hit{Limit: l, Key: "e", Cost: 3})
	}
	if n := store.Len(); n != 0 {
		t.Errorf("Len() = %d after requests without a charge, want 0", n)
	}
}

// The store removes expired keys, and frees their memory.
func TestExpiredKeysFreeMemory(t *testing.T) {
	for _, capacity := range []int{0, 1000} { // 64 stripes, and one
		c := conformance.NewClock()
		store := open(t, memory.Options{Capacity: capacity, Now: c.Now})
		l := &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Second}
		conformance.CheckHeapGrowth(t, 10<<20, store, func() {
			for i := range 200_000 {
				take(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1})
			}
			c.Micro += 10 * conformance.Second
			for i := range 80_000 {
				take(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint("k", i%5000), Cost: 1})
			}
		})
		if n := store.Len(); n > 6000 {
			t.Errorf("Len() = %d after 200,000 keys have expired, want at most 6000", n)
		}
	}
}

// The store copies keys. Otherwise a key that is a part of a request would keep the whole request in memory.
func TestKeysAreCopied(t *testing.T) {
	store := open(t, memory.Options{})
	l := &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Hour}
	conformance.CheckHeapGrowth(t, 20<<20, store, func() {
		for i := range 200 {
			request := strings.Repeat("x", 1<<20) + fmt.Sprint(i)
			take(t, store, ratelimit.Hit{Limit: l, Key: request[1<<20-10:], Cost: 1})
		}
	})
	if n := store.Len(); n != 200 {
		t.Errorf("Len() = %d, want 200", n)
	}
}

// Many goroutines charge the same keys in different orders. Each request is charged on all its keys or on
// none, so that in the end all keys have the same quota left. No decision shows a part of a request.
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
				passes := true
				for _, d := range take(t, store, hits...) {
					passes = passes && d.Allowed
				}
				if passes {
					passed.Add(1)
				}
				for _, d := range take(t, store, hits[1:]...)[1:] {
					if d.Remaining%3 != 1 {
						t.Errorf("%d left, want 1000 less a multiple of 3", d.Remaining)
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
		peek := ratelimit.Hit{Limit: l, Key: fmt.Sprint(key), Cost: 1, Peek: true}
		if d := take(t, store, peek)[0]; d.Remaining != 700 {
			t.Errorf("key %d: %d left after 100 requests of 3, want 700", key, d.Remaining)
		}
	}
}
