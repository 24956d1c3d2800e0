package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// budget is a limit that reserves.
func budget(events int64) *ratelimit.Limit {
	return &ratelimit.Limit{Prefix: "b", Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour,
		Durable: true, Reserves: true}
}

// reserve reserves units of a limit, and returns its Hold and the decision.
func reserve(t failer, store ratelimit.Store, l *ratelimit.Limit, units int64) (*ratelimit.Hold,
	ratelimit.Decision) {
	hold := &ratelimit.Hold{}
	return hold, takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: units, Hold: hold})
}

// bill returns the bill number n of a request on one limit.
func bill(n int, l *ratelimit.Limit, units int64, hold *ratelimit.Hold) *batch.Bill {
	return &batch.Bill{Day: time.Now().Unix() / 86400, ID: uuid(n), User: "u",
		Lines:   []batch.Line{{Model: "m", Input: units}},
		Charges: []batch.Charge{{Limit: l, Key: "k", Unit: "tokens", RealUnits: units, Hold: hold}}}
}

// usedAndHeld returns the columns count and held of the row of a budget.
func (s *testDB) usedAndHeld() string {
	return s.queryText(`SELECT concat_ws(' ', count, coalesce((SELECT sum(held[i][2])
		FROM generate_subscripts(held, 1) i), 0)) FROM rate_limit_durable WHERE prefix = 'b'`)
}

// awaitSettled waits until a store has settled all bills.
func awaitSettled(t testing.TB, store *engine.Engine) {
	t.Helper()
	await.Within(t, 20*time.Second, "settlements", func() bool { return store.Ledger().Unsettled() == 0 })
}

// A budget is used to its end, once: a request passes while anything is left, and holds all that it may cost.
// A request that is refused because of what others hold gets a RetryAfter of a second, and passes once they
// have cost less.
func TestBudgetIsUsedToItsEnd(t *testing.T) {
	s := newTestDB(t)
	store := s.openEngine(engine.Options{CleanupProbability: -1})
	l := budget(1000)
	first, d := reserve(t, store, l, 600)
	check.Equal(t, "the first", outcomes(d), "allowed 400 of 1000")
	second, d := reserve(t, store, l, 700)
	check.Equal(t, "the second", outcomes(d), "allowed 0 of 1000")
	_, d = reserve(t, store, l, 1)
	check.Equal(t, "the third", outcomes(d)+" "+d.RetryAfter.String(), "refused 0 of 1000 1s")
	store.Ledger().Settle(bill(1, l, 35, first))
	store.Ledger().Settle(bill(2, l, 40, second))
	awaitSettled(t, store)
	check.Equal(t, "used and held", s.usedAndHeld(), "75 0")
	third, d := reserve(t, store, l, 2000-1000)
	check.Equal(t, "the third, again", outcomes(d), "allowed 0 of 1000")
	store.Ledger().Settle(bill(3, l, 5000, third))
	awaitSettled(t, store)
	check.Equal(t, "used and held in debt", s.usedAndHeld(), "5075 0")
	_, d = reserve(t, store, l, 1)
	if d.Allowed || d.RetryAfter < 50*time.Minute {
		t.Errorf("a request in debt: %+v, want a refusal until the window ends", d)
	}
	check.Equal(t, "the ledger", s.queryText(`SELECT string_agg(concat_ws(' ', user_id, model, input,
		cache_read, output, charges->0->>'prefix', charges->0->>'units'), ', ' ORDER BY id)
		FROM rate_limit_ledger`),
		"u m 35 0 0 b 35, u m 40 0 0 b 40, u m 5000 0 0 b 5000")
}

// Different reservations of one key in a batch are one statement.
func TestReservationsOfOneKeyShareAStatement(t *testing.T) {
	s := newTestDB(t)
	var statements int64
	store := s.openEngineOn(fakedb.Between(s.openDB(""),
		func(pipeline []*pgdb.Statement, send fakedb.Send) error {
			for _, one := range pipeline {
				if strings.Contains(one.SQL, "INSERT INTO rate_limit_durable") {
					atomic.AddInt64(&statements, 1)
				}
			}
			return send(pipeline)
		}), bareOptions)
	l := budget(1 << 40)
	reserve(t, store, l, 1)
	atomic.StoreInt64(&statements, 0)
	var calls []*batch.Call
	for i := range int64(64) {
		calls = append(calls, newCall(false, ratelimit.Hit{Limit: l, Key: "k", Cost: 100 + i,
			Hold: &ratelimit.Hold{}}))
	}
	store.DecideBatch(calls)
	check.Equal(t, "statements", atomic.LoadInt64(&statements), 1)
	check.Equal(t, "used and held", s.usedAndHeld(), fmt.Sprint("0 ", 1+64*100+63*64/2))
}

// While many requests run, settlements wait up to 10 ms for others, with which they share a transaction.
func TestSettlementsOfManyRequestsShareTransactions(t *testing.T) {
	for running, want := range map[int]int{8: 8, 20: 1} {
		synctest.Test(t, func(t *testing.T) {
			var transactions atomic.Int64
			answer := func(_ context.Context, statements []*pgdb.Statement) error {
				for _, s := range statements {
					switch {
					case strings.Contains(s.SQL, "INSERT INTO rate_limit_processes"):
						addRow(s, int8(1))
					case strings.Contains(s.SQL, "INSERT INTO rate_limit_ledger"):
						transactions.Add(1)
						addRow(s, []byte("new"))
					case returnsRows(s):
						addRow(s, int8(1), int8(1), fakeNow, int8(0), int8(0), int8(0), fakeNow)
					}
				}
				return nil
			}
			store := newEngine(t, &fakeDB{answer: answer}, bareOptions)
			l := budget(1 << 40)
			var holds []*ratelimit.Hold
			for range running {
				hold, _ := reserve(t, store, l, 1)
				holds = append(holds, hold)
			}
			for i := range 8 {
				store.Ledger().Settle(bill(i, l, 1, holds[i]))
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			check.Equal(t, fmt.Sprint("transactions with ", running), transactions.Load(), want)
			check.Equal(t, "settlements that are left", store.Ledger().Unsettled(), 0)
			store.Close()
		})
	}
}

// A bill changes the rows of each algorithm in one statement. A row that was deleted meanwhile is made, with
// what the request has cost, and holds nothing.
func TestSettlementIsAStatementForEachAlgorithm(t *testing.T) {
	s := newTestDB(t)
	var statements atomic.Int64
	store := s.openEngineOn(fakedb.Between(s.openDB(""),
		func(pipeline []*pgdb.Statement, send fakedb.Send) error {
			statements.Store(int64(len(pipeline)))
			return send(pipeline)
		}), bareOptions)
	fixed, sliding := budget(1000), budget(1000)
	sliding.Algorithm, sliding.Prefix = ratelimit.SlidingWindow, "s"
	one := bill(1, fixed, 0, nil)
	one.Charges = nil
	for _, key := range []string{"a", "b", "c"} {
		for _, l := range []*ratelimit.Limit{sliding, fixed} {
			slot := &ratelimit.Hold{}
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: key, Cost: 100, Hold: slot})
			one.Charges = append(one.Charges, batch.Charge{Limit: l, Key: key, RealUnits: 7, Hold: slot})
		}
	}
	s.exec("DELETE FROM rate_limit_durable WHERE key = 'b'")
	store.Ledger().Settle(one)
	awaitSettled(t, store)
	check.Equal(t, "statements, with that of the ledger", statements.Load(), 3)
	check.Equal(t, "rows", s.queryText(`SELECT string_agg(concat_ws(' ', prefix, key, count, held), ', '
		ORDER BY prefix, key) FROM rate_limit_durable`), "b a 7, b b 7, b c 7, s a 7, s b 7, s c 7")
	check.Equal(t, "rows with the time of the ledger", s.queryText(`SELECT count(*) FROM rate_limit_durable
		JOIN rate_limit_ledger ON time = window_start WHERE key = 'b'`), "2")
}

// What a killed process held is free once its name has expired, for every program on the row.
func TestUnitsOfLostProcessAreFree(t *testing.T) {
	s := newTestDB(t)
	lost := s.openEngine(bareOptions)
	l := budget(100)
	reserve(t, lost, l, 100)
	other := s.openEngine(bareOptions)
	_, d := reserve(t, other, l, 10)
	check.Equal(t, "beside the other process", outcomes(d), "refused 0 of 100")
	// The names of processes are times: a name of an hour ago that was not renewed is of a lost process.
	s.exec("UPDATE rate_limit_durable SET held = '{{1,100}}'")
	_, d = reserve(t, other, l, 10)
	check.Equal(t, "after its loss", outcomes(d), "allowed 90 of 100")
	check.Equal(t, "used and held", s.usedAndHeld(), "0 10")
}

// A settlement for a day without a partition makes the partition. A settlement that the ledger refuses makes
// none, is reported, and holds up no other.
func TestRefusedSettlementIsNoMissingPartition(t *testing.T) {
	t.Parallel()
	s, l := newTestDB(t), budget(100)
	var made atomic.Int64
	store := s.openEngineOn(drivers.All["pgwire"](t, s.dsn), engine.Options{CleanupProbability: -1,
		OnError: s.report,
		Upkeep: func(int64) error {
			made.Add(1)
			cluster.Execute(t, s.dsn, "SELECT rate_limit_ledger_upkeep()")
			return nil
		}})
	slot, _ := reserve(t, store, l, 1)
	s.exec("DO $$ BEGIN EXECUTE 'DROP TABLE rate_limit_ledger_' " +
		"|| to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$")
	store.Ledger().Settle(bill(1, l, 5, slot))
	awaitSettled(t, store)
	partitions := made.Load()
	s.requireNoReports()
	store.Ledger().Settle(bill(2, l, -5, nil))
	store.Ledger().Settle(bill(3, l, 7, nil))
	await.Within(t, testTimeout, "the other settlement", func() bool { return s.usedAndHeld() == "12 0" })
	await.Within(t, testTimeout, "the report", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(fmt.Sprint(s.reported), "amounts_of_a_charge_must_be_0_or_more")
	})
	check.Equal(t, "partitions made", []int64{partitions, made.Load()}, []int64{1, 1})
}

// A settlement that is repeated after midnight, because its answer was lost, is one row, and charges once.
func TestSettlementRepeatedAfterMidnightChargesOnce(t *testing.T) {
	s := newTestDB(t)
	s.exec(schema.File)
	s.exec(`CREATE SCHEMA fake;
		CREATE TABLE fake.clock AS SELECT date_trunc('day', now(), 'UTC') + interval '23:59:59' AS time;
		CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql
			AS 'SELECT time FROM fake.clock'`)
	var sent atomic.Int64
	store := s.openEngineOn(fakedb.Between(s.openDB("search_path=public,fake,pg_catalog"),
		func(pipeline []*pgdb.Statement, send fakedb.Send) error {
			err := send(pipeline)
			if strings.Contains(pipeline[0].SQL, "INSERT INTO rate_limit_ledger") && sent.Add(1) == 1 {
				s.exec("UPDATE fake.clock SET time = time + interval '2 s'")
				return pgdb.ErrConnectionLost
			}
			return err
		}), bareOptions)
	l := budget(1000)
	slot, _ := reserve(t, store, l, 600)
	store.Ledger().Settle(bill(1, l, 7, slot))
	awaitSettled(t, store)
	check.Equal(t, "used and held, and rows", s.usedAndHeld()+s.queryText(`SELECT concat(', ', count(*))
		FROM rate_limit_ledger`), "7 0, 1")
	check.Equal(t, "transactions", sent.Load(), 2)
}
