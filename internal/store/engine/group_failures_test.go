package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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
	peek, refund, aside := durableHit("k"), durableHit("k"), durableHit("k")
	peek.Peek, refund.Cost, aside.Independent = true, -1, true
	besideOthers := fakeHits("h")
	besideOthers[0].Independent = true
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
		{append(fakeHits("h"), aside), true}, // undecided
		{append(besideOthers, durableHit("h")), false},
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

// A value that the database refuses fails the request that has it, and not the others of its statement.
func TestBadValueFailsOnlyItsRequest(t *testing.T) {
	store := newEngine(t, &fakeDB{answer: failWhere("22021", "bad value", func(s *pgdb.Statement) bool {
		return slices.Contains(statementKeys(s), "bad")
	})}, bareOptions)
	calls := []*batch.Call{newCall(false, fakeHits("a")...), newCall(false, fakeHits("bad")...),
		newCall(false, fakeHits("b", "c")...), newCall(false, fakeHits("d", "bad")...)}
	store.DecideBatch(calls)
	for i, c := range calls {
		if (c.Err == nil) != (i%2 == 0) {
			t.Errorf("request %d: error %v, want one if it has the bad value", i, c.Err)
		}
	}
}

// A statement that lost a conflict or waited too long for a lock is sent again, or its whole transaction, and
// no other statement, so that no hit is charged twice.
func TestOnlyFailedStatementsAreRepeated(t *testing.T) {
	for _, code := range []string{pg.SerializationFailure, pg.DeadlockDetected, pg.LockNotAvailable} {
		for _, several := range []bool{false, true} {
			sent := map[string]int{}
			db := &fakeDB{answer: failWhere(code, "another has the row", func(s *pgdb.Statement) bool {
				for _, key := range statementKeys(s) {
					sent[key]++
				}
				return slices.Contains(statementKeys(s), "locked") && sent["locked"] == 1
			})}
			locked := hitOn("durable", 5, true)
			locked.Key = "locked"
			calls, want := []*batch.Call{newCall(false, fakeHits("free")...), newCall(false, locked)},
				"map[free:1 locked:2]"
			if several {
				calls, want = []*batch.Call{newCall(false, append(fakeHits("free"), locked)...)},
					"map[free:2 locked:2]"
			}
			newEngine(t, db, bareOptions).DecideBatch(calls)
			for _, c := range calls {
				if c.Err != nil || !allAllowed(c.Decisions) {
					t.Errorf("%s, several %v: %v, %+v; want all allowed", code, several, c.Err, c.Decisions)
				}
			}
			check.Equal(t, fmt.Sprint(code, ", several ", several, ": sent"), sent, want)
		}
	}
}
