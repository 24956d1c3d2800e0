package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestOneStatementFails: the failure of a table fails the requests that need it, and no
// others. A request that needs both tables is charged in neither.
func TestOneStatementFails(t *testing.T) {
	durable := *fakeLimit
	durable.Durable = true
	inDurable := func(s *postgres.Statement) bool { return strings.Contains(s.SQL, "rate_limit_durable") }
	on := func(key string) ratelimit.Hit { return ratelimit.Hit{Limit: &durable, Key: key, Cost: 1} }
	peek, refund := on("k"), on("k")
	peek.Peek, refund.Cost = true, -1
	for _, test := range []struct {
		hits []ratelimit.Hit
		want bool
	}{
		{fakeHits("a"), true},
		{[]ratelimit.Hit{on("b")}, false},
		{[]ratelimit.Hit{peek}, false},
		{[]ratelimit.Hit{refund}, false},
		{append(fakeHits("c"), on("c")), false},
		{append(fakeHits("d"), peek), false},
		{append(fakeHits("e"), refund), false},
		{fakeHits("f", "g"), true},
	} {
		store := newStore(t, &fakeDB{answer: failing("53100", "disk full", inDurable)}, without)
		all := []*batch.Call{callFor(false, fakeHits("x")...), callFor(false, test.hits...), callFor(false, fakeHits("y", "z")...), callFor(true, fakeHits("w")...)}
		store.DecideBatch(all)
		for i, c := range all {
			if want := i != 1 || test.want; (c.Err == nil) != want || c.Err != nil && !strings.Contains(c.Err.Error(), "disk full") || want && !c.Reset && !allAllowed(c.Decisions) {
				t.Errorf("request %d of %+v: %v, %+v; want it to be decided: %v", i, test.hits, c.Err, c.Decisions, want)
			}
		}
	}
	// Only the refund of a hit fails, not the look that follows it.
	failRefunds := failing("53100", "disk full", func(s *postgres.Statement) bool { return strings.Contains(s.SQL, "greatest(0, r.count)") })
	store := newStore(t, &fakeDB{answer: failRefunds}, without)
	refund.Limit = fakeLimit
	if _, _, err := tryOne(store, longTime, refund); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a refund that failed: %v", err)
	}
}

// TestLostTransactionsRunAgain: a statement or a transaction that lost against another runs
// again as a whole, and only that.
func TestLostTransactionsRunAgain(t *testing.T) {
	durable := *fakeLimit
	durable.Durable = true
	for _, code := range []string{"40001", "40P01"} {
		for _, several := range []bool{false, true} {
			tries := map[string]int{}
			db := &fakeDB{answer: failing(code, "lost", func(s *postgres.Statement) bool {
				table := "ephemeral"
				if strings.Contains(s.SQL, "rate_limit_durable") {
					table = "durable"
				} else if isCheck(s) {
					table = "check"
				}
				tries[table]++
				return table == "durable" && tries[table] < 3
			})}
			store := newStore(t, db, without)
			on := ratelimit.Hit{Limit: &durable, Key: "a", Cost: 1}
			calls, want := []*batch.Call{callFor(false, fakeHits("a")...), callFor(false, on)}, "map[durable:3 ephemeral:1]"
			if several {
				// The failure of the second statement keeps the server from running the third.
				calls, want = []*batch.Call{callFor(false, append(fakeHits("a"), on)...)}, "map[check:1 durable:3 ephemeral:3]"
			}
			store.DecideBatch(calls)
			for _, c := range calls {
				if c.Err != nil || !allAllowed(c.Decisions) {
					t.Errorf("%s, several %v: %v, %+v", code, several, c.Err, c.Decisions)
				}
			}
			if fmt.Sprint(tries) != want {
				t.Errorf("%s, several %v: tried %v, want %s", code, several, tries, want)
			}
		}
	}
}

// TestRefusedValuesFailTheirOwnRequest: the server refuses a value, such as a key in
// characters that its encoding lacks. Only the request with that value fails.
func TestRefusedValuesFailTheirOwnRequest(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			conformance.StoreInLatin1(t, open, func(t testing.TB, dsn string) ratelimit.Store {
				return newStore(t, open(t, dsn), postgres.Options{CleanupProbability: -1})
			})
		})
	}
	answer := failing("22P05", "no such character", func(s *postgres.Statement) bool { return slices.Contains(keysOf(s), "bad") })
	store := newStore(t, &fakeDB{answer: answer}, without)
	var calls []*batch.Call
	for _, keys := range [][]string{{"a"}, {"bad"}, {"b"}, {"c", "d"}, {"e", "bad"}, {"f", "g"}} {
		calls = append(calls, callFor(false, fakeHits(keys...)...))
	}
	store.DecideBatch(calls)
	for i, c := range calls {
		if bad := i == 1 || i == 4; (c.Err != nil) != bad || !bad && !allAllowed(c.Decisions) {
			t.Errorf("request %d: %v, %+v", i, c.Err, c.Decisions)
		}
	}
}

// TestRefusedValueBesideALockedRow: one statement of a batch fails because of a value, and
// another because of a locked row. No other request fails.
func TestRefusedValueBesideALockedRow(t *testing.T) {
	waited := false
	answer := func(ctx context.Context, statements []*postgres.Statement) error {
		for _, s := range statements {
			switch keys := keysOf(s); {
			case isLockQuery(s):
				addRow(s, [][]byte{int8(1), int8(700)})
			case slices.Contains(keys, "bad"):
				serverError(s, "22P05", "no such character")
			case slices.Contains(keys, "locked") && !waited:
				waited = true
				serverError(s, "55P03", "canceling statement due to lock timeout")
			default:
				_ = admit(ctx, []*postgres.Statement{s})
			}
		}
		return nil
	}
	store := newStore(t, &fakeDB{answer: answer}, without)
	locked := hitOn("durable", 5, true)
	locked.Key = "locked"
	calls := []*batch.Call{callFor(false, fakeHits("a")...), callFor(false, fakeHits("bad")...), callFor(false, fakeHits("b")...), callFor(false, locked)}
	store.DecideBatch(calls)
	for i, c := range calls {
		if bad := i == 1; (c.Err != nil) != bad || !bad && !allAllowed(c.Decisions) {
			t.Errorf("request %d: %v, %+v", i, c.Err, c.Decisions)
		}
	}
}
