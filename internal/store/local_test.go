package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// down is a store that decides nothing, and holds no slots.
type down struct{ counts }

func (*down) Held(lease.RowID) int64 { return 0 }

func newDown() *Shares {
	store := newShares(nil)
	store.replace(&down{})
	return store
}

var errDown = fmt.Errorf("%w: test", ratelimit.ErrUnavailable)

// A durable limit of requests in flight owes nothing: its slots end with their requests.
func TestLocalSlotsAreNotCharged(t *testing.T) {
	store := newDown()
	l := conformance.InFlight("flight", 2)
	l.Durable = true
	decisions := make([]ratelimit.Decision, 1)
	take := func() (*ratelimit.Slot, bool) {
		slot := &ratelimit.Slot{}
		hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1, Slot: slot}}
		return slot, store.TakeLocal(errDown, hits, decisions) && decisions[0].Allowed
	}
	first, _ := take()
	if _, ok := take(); !ok {
		t.Error("the second slot of two is refused")
	}
	if _, ok := take(); ok {
		t.Error("a third slot of two is granted")
	}
	if n := len(store.unpaid); n != 0 {
		t.Errorf("%d rows are to be charged", n)
	}
	first.Release()
	if _, ok := take(); !ok {
		t.Error("a slot that is free again is refused")
	}
}

// What is remembered is bounded.
func TestLocalRowsAreBounded(t *testing.T) {
	store := newDown()
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour,
		Durable: true}
	decisions := make([]ratelimit.Decision, 1)
	for i := range 120_000 {
		if !store.TakeLocal(errDown, []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Cost: 1}}, decisions) ||
			!decisions[0].Allowed {
			t.Fatal(decisions[0])
		}
	}
	if rows, unpaid := len(store.rows), len(store.unpaid); rows > maxRows || unpaid > maxUnpaid {
		t.Errorf("%d rows, %d with charges", rows, unpaid)
	}
}
