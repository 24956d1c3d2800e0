package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// newLocalStore returns a store that decides only locally.
func newLocalStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(fakedb.Down, engine.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.UseLocal()
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
	take := func() (*ratelimit.Hold, bool) {
		hold := &ratelimit.Hold{}
		hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1, Hold: hold}}
		return hold, store.TakeLocal(errDown, hits, decisions) && decisions[0].Allowed
	}
	first, _ := take()
	if _, ok := take(); !ok {
		t.Error("a hit on the second of two slots is refused, want allowed")
	}
	if _, ok := take(); ok {
		t.Error("a hit on a third of two slots is allowed, want refused")
	}
	if n := len(store.debts); n != 0 {
		t.Errorf("%d debts, want 0", n)
	}
	first.Release()
	if _, ok := take(); !ok {
		t.Error("a hit on a released slot is refused, want allowed")
	}
}

// In an outage, each shard settles the requests of its secret keys.
func TestOutageSettlesSecretKeysOnTheirShards(t *testing.T) {
	store := newLocalStore(t)
	for range 2 {
		e, err := engine.New(fakedb.Down, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store.engines = append(store.engines, e)
	}
	store.found = 1
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 100, Window: time.Hour,
		Durable: true, Reserves: true}
	decisions := make([]ratelimit.Decision, 1)
	for i := range 20 {
		hits := []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Secret: true, Cost: 10,
			Hold: &ratelimit.Hold{}}}
		store.TakeLocal(errDown, hits, decisions)
		store.settleLocal([]*batch.Bill{{Charges: []batch.Charge{{Limit: l, Key: hits[0].StoredKey(),
			Charged: 10, RealUnits: 30, Hold: hits[0].Hold}}}})
		store.TakeLocal(errDown, hits, decisions)
		check.Equal(t, hits[0].Key, decisions[0].Remaining, 60)
	}
}

// Local decisions on any number of keys keep about 50,000 rows, and maxDebts debts. Rows with a debt stay,
// and only those are searched by other requests.
func TestLocalRowsAreBounded(t *testing.T) {
	store := newLocalStore(t)
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour,
		Durable: true}
	decisions := make([]ratelimit.Decision, 1)
	take := func(keys int, want int64) {
		for i := range keys {
			hits := []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Cost: 1}}
			if !store.TakeLocal(errDown, hits, decisions) || decisions[0].Remaining != want {
				t.Fatalf("key %d: %+v, want %d remaining", i, decisions[0], want)
			}
		}
	}
	take(120_000, 9)
	rows := 0
	for _, stripe := range store.Rows().Stripes {
		rows += len(stripe.Rows)
	}
	debts, searched := len(store.debts), store.Rows().RowCount
	if rows != 50_080 || debts != maxDebts || searched != maxDebts {
		t.Errorf("%d rows, %d debts and %d searched rows, want 50080, %d and %d", rows, debts, searched,
			maxDebts, maxDebts)
	}
	take(maxDebts, 8)
}
