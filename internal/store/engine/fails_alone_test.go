package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// If the statements on one table fail, only the requests that need this table fail. A request that needs both
// tables is charged in neither.
func TestFailedStatementFailsOnlyItsRequests(t *testing.T) {
	durable := *fakeLimit
	durable.Durable = true
	inDurable := func(s *pgdb.Statement) bool { return strings.Contains(s.SQL, "rate_limit_durable") }
	durableHit := func(key string) ratelimit.Hit { return ratelimit.Hit{Limit: &durable, Key: key, Cost: 1} }
	peek, refund := durableHit("k"), durableHit("k")
	peek.Peek, refund.Cost = true, -1
	for _, test := range []struct {
		hits    []ratelimit.Hit
		decided bool
	}{
		{fakeHits("a"), true},
		{[]ratelimit.Hit{durableHit("b")}, false},
		{[]ratelimit.Hit{peek}, false},
		{[]ratelimit.Hit{refund}, false},
		{append(fakeHits("c"), durableHit("c")), false},
		{append(fakeHits("d"), peek), false},
		{append(fakeHits("e"), refund), false},
		{fakeHits("f", "g"), true},
	} {
		store := newEngine(t, &fakeDB{answer: failWhere("53100", "disk full", inDurable)}, bareOptions)
		calls := []*batch.Call{newCall(false, fakeHits("x")...), newCall(false, test.hits...),
			newCall(false, fakeHits("y", "z")...), newCall(true, fakeHits("w")...)}
		store.DecideBatch(calls)
		for i, c := range calls {
			want := "<nil>"
			if i == 1 && !test.decided {
				want = "disk full"
			}
			if !strings.Contains(fmt.Sprint(c.Err), want) {
				t.Errorf("request %d of %+v: error %v, want %s", i, test.hits, c.Err, want)
			}
			if c.Err == nil && !c.Reset && !allAllowed(c.Decisions) {
				t.Errorf("request %d of %+v: %+v, want it allowed", i, test.hits, c.Decisions)
			}
		}
	}
	// The database fails the refund of a hit, and not the peek that follows it. The caller gets the error.
	failRefunds := failWhere("53100", "disk full",
		func(s *pgdb.Statement) bool { return strings.Contains(s.SQL, "2305843009213693952") })
	store := newEngine(t, &fakeDB{answer: failRefunds}, bareOptions)
	refund.Limit = fakeLimit
	_, _, err := tryOne(store, testTimeout, refund)
	if !strings.Contains(fmt.Sprint(err), "disk full") {
		t.Errorf("a refund that failed: error %v, want disk full", err)
	}
}

// If the server reports that a statement lost a conflict, the store sends the statement again, or its whole
// transaction, and no other statement.
func TestLostTransactionsRunAgain(t *testing.T) {
	durable := *fakeLimit
	durable.Durable = true
	for _, code := range []string{"40001", "40P01"} {
		for _, several := range []bool{false, true} {
			tries := map[string]int{}
			db := &fakeDB{answer: failWhere(code, "lost", func(s *pgdb.Statement) bool {
				table := "ephemeral"
				if strings.Contains(s.SQL, "rate_limit_durable") {
					table = "durable"
				} else if isCheck(s) {
					table = "check"
				}
				tries[table]++
				return table == "durable" && tries[table] < 3
			})}
			store := newEngine(t, db, bareOptions)
			on := ratelimit.Hit{Limit: &durable, Key: "a", Cost: 1}
			calls, want := []*batch.Call{newCall(false, fakeHits("a")...), newCall(false, on)},
				"map[durable:3 ephemeral:1]"
			if several {
				// The server does not run the third statement after the failure of the second.
				calls, want = []*batch.Call{newCall(false, append(fakeHits("a"), on)...)},
					"map[check:1 durable:3 ephemeral:3]"
			}
			store.DecideBatch(calls)
			for _, c := range calls {
				if c.Err != nil || !allAllowed(c.Decisions) {
					t.Errorf("%s, several %v: %v, %+v; want all allowed", code, several, c.Err, c.Decisions)
				}
			}
			if fmt.Sprint(tries) != want {
				t.Errorf("%s, several %v: tried %v, want %s", code, several, tries, want)
			}
		}
	}
}
