package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestMemory(t *testing.T) {
	conformance.Store(t, func(testing.TB) ratelimit.Store { return ratelimit.NewMemory(0, nil) })
}

// TestMemoryExpires: rows that say nothing any more go, as others are decided.
func TestMemoryExpires(t *testing.T) {
	for _, l := range hourly("") {
		c := &clock{now: 1_700_000_000 * second}
		store := ratelimit.NewMemory(0, c.read)
		for i := range 1000 {
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1})
		}
		if n := store.Size(); n != 1000 {
			t.Errorf("%s: %d rows of 1000 that live", l.Prefix, n)
		}
		c.now += 366 * 24 * 3600 * second
		for range 2000 {
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1})
		}
		if n := store.Size(); n > 100 {
			t.Errorf("%s: %d rows of 1000 that have expired", l.Prefix, n)
		}
	}
}

// TestMemoryIsBounded: a key too many displaces another, one that has expired if
// it comes by one; what only looks or was refused leaves no row.
func TestMemoryIsBounded(t *testing.T) {
	c := &clock{now: 1_700_000_000 * second}
	store := ratelimit.NewMemory(100, c.read)
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
	for i := range 1000 {
		h := ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
		if d := takeOne(t, store, h); !d.Allowed || d.Remaining != 1 {
			t.Fatalf("key %d: %+v", i, d)
		}
		if d := takeOne(t, store, h); d.Remaining != 0 {
			t.Fatalf("key %d, again: %+v", i, d)
		}
		if n := store.Size(); n > 100 {
			t.Fatalf("%d rows of at most 100", n)
		}
	}
	if n := store.Size(); n != 100 {
		t.Errorf("%d rows, want 100", n)
	}
	// All but one have expired: of those goes one.
	c.now += 2 * 3600 * second
	live := ratelimit.Hit{Limit: l, Key: "live", Cost: 1}
	few := ratelimit.NewMemory(10, c.read)
	few.KeepExpired()
	for i := range 9 {
		takeOne(t, few, ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1})
	}
	c.now += 2 * 3600 * second
	takeOne(t, few, live)
	displaced := 0
	for i := range 50 {
		takeOne(t, few, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "q", Events: 1, Window: time.Millisecond}, Key: fmt.Sprint(i), Cost: 1})
		c.now += 2000 // it has expired when the next comes
		if d := takeOne(t, few, ratelimit.Hit{Limit: l, Key: "live"}); d.Remaining == 2 {
			displaced++
			takeOne(t, few, live)
		}
	}
	if n := few.Size(); n > 10 || displaced > 10 {
		t.Errorf("%d rows of at most 10, and one that lived was displaced %d times", n, displaced)
	}
	empty := ratelimit.NewMemory(100, c.read)
	for _, h := range []ratelimit.Hit{{Limit: l, Key: "a"}, {Limit: l, Key: "b", Cost: 1, Peek: true}, {Limit: l, Key: "c", Cost: -1}, {Limit: l, Key: "d", Cost: 3}} {
		takeOne(t, empty, h)
	}
	if n := empty.Size(); n != 0 {
		t.Errorf("%d rows of keys that were charged nothing", n)
	}
}
