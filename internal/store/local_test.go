package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// downDB is a database that cannot be reached.
type downDB struct{ pgdb.DB }

func (downDB) Close() {}

// newLocalStore returns a store that decides only locally.
func newLocalStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(downDB{}, engine.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var errDown = fmt.Errorf("%w: test", ratelimit.ErrUnavailable)

// Local decisions on a durable in_flight limit leave no debt to charge after the outage, because slots end
// with their requests.
func TestLocalSlotsAreNotCharged(t *testing.T) {
	store := newLocalStore(t)
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
		t.Error("a hit on the second of two slots is refused, want allowed")
	}
	if _, ok := take(); ok {
		t.Error("a hit on a third of two slots is allowed, want refused")
	}
	if n := len(store.unpaid); n != 0 {
		t.Errorf("%d debts, want 0", n)
	}
	first.Release()
	if _, ok := take(); !ok {
		t.Error("a hit on a released slot is refused, want allowed")
	}
}

// Local decisions on any number of keys keep at most maxRows rows and maxUnpaid debts.
func TestLocalRowsAreBounded(t *testing.T) {
	store := newLocalStore(t)
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour,
		Durable: true}
	decisions := make([]ratelimit.Decision, 1)
	for i := range 120_000 {
		hits := []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Cost: 1}}
		if decided := store.TakeLocal(errDown, hits, decisions); !decided || !decisions[0].Allowed {
			t.Fatalf("key %d: decided %v, %+v, want it allowed", i, decided, decisions[0])
		}
	}
	if rows, unpaid := len(store.rows), len(store.unpaid); rows > maxRows || unpaid > maxUnpaid {
		t.Errorf("%d rows and %d debts, want at most %d and %d", rows, unpaid, maxRows, maxUnpaid)
	}
}
