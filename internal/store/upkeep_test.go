package store_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A proxy sums the days of the ledger that have ended. A settlement for such a day still arrives, and is in
// the invoice.
func TestLateSettlementIsInTheInvoice(t *testing.T) {
	dsn := cluster.Open(t, schema.File, `
		SELECT rate_limit_ledger_upkeep((now() AT TIME ZONE 'UTC')::date - 3);
		INSERT INTO rate_limit_ledger (day, id, time, user_id, model, money, charges)
			SELECT (now() AT TIME ZONE 'UTC')::date - 3, gen_random_uuid(), now() - interval '3 days', 'ann',
				'm', 1, '[]'`)
	s, err := store.Open(drivers.All["pgwire"](t, dsn), engine.Options{CleanupProbability: -1,
		Random: func() float64 { return 1 }}, // the upkeep is due at once
		&registry.Node{Name: "a", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Prepare()
	await.Within(t, time.Minute, "the sum of the day", func() bool {
		return cluster.Query[int](t, dsn, "SELECT count(*)::int FROM rate_limit_totals") == 1
	})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour,
		Durable: true, Reserves: true}
	s.Settle(&batch.Bill{Day: time.Now().Unix()/86400 - 3, ID: "00000000-0000-0000-0000-000000000001",
		User: "ann", Lines: []batch.Line{{Model: "m", Money: "5.500"}},
		Charges: []batch.Charge{{Limit: l, Key: "k", Unit: "money", RealUnits: 6, Excess: 500}}})
	await.Within(t, time.Minute, "the invoice with both", func() bool {
		return cluster.Query[string](t, dsn, `SELECT string_agg(concat_ws(' ', requests, money), ', ')
			FROM rate_limit_invoice('ann', now() - interval '9 days', now() + interval '1 day')`) ==
			"2 0.000006500"
	})
}

// Each percentage that settled units reach makes one row, also if several proxies see it and again at a later
// charge. Units that are only held make none. What no proxy has reported, the upkeep finds.
func TestEachPercentageMakesOneNotice(t *testing.T) {
	dsn := cluster.Open(t, schema.File,
		`SELECT rate_limit_rule('r', limits => '{l=0.001 money/30d}', algorithm => 'fixed_window',
			notify => '{50,80,100,120}')`)
	var stores []*store.Store
	for _, name := range []string{"a", "b"} {
		s, err := store.Open(drivers.All["pgwire"](t, dsn), engine.Options{CleanupProbability: -1},
			&registry.Node{Name: name, Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Prepare()
		stores = append(stores, s)
	}
	l := &ratelimit.Limit{Prefix: "rule/r/l", Algorithm: ratelimit.FixedWindow, Events: 1000,
		Window: 30 * 24 * time.Hour, Durable: true, Reserves: true}
	charge := func(s *store.Store, id string, units int64, notifies bool) {
		hold := &ratelimit.Hold{}
		d := make([]ratelimit.Decision, 1)
		hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1000, Hold: hold}}
		if err := s.Take(t.Context(), time.Minute, hits, d); err != nil {
			t.Fatal(err)
		}
		one := batch.Charge{Limit: l, Key: "k", Unit: "money", RealUnits: units, Hold: hold}
		if notifies {
			one.Notice = &batch.Notice{Limit: l, Key: "k", Unit: "money", Quota: 1000,
				Percents: []int64{50, 80, 100, 120}}
		}
		s.Settle(&batch.Bill{Day: time.Now().Unix() / 86400,
			ID: "00000000-0000-0000-0000-00000000000" + id, Charges: []batch.Charge{one}})
	}
	awaitRows := func(want string) {
		t.Helper()
		await.Within(t, 20*time.Second, "the notices "+want, func() bool {
			return cluster.Query[string](t, dsn, `SELECT coalesce(string_agg(concat_ws(' ', percent,
				used, quota), ', ' ORDER BY percent), 'none') FROM rate_limit_notices`) == want
		})
	}
	charge(stores[0], "1", 499, true)
	charge(stores[1], "2", 350, true)
	awaitRows("50 0.000849 0.001000, 80 0.000849 0.001000")
	charge(stores[0], "3", 100, true)
	awaitRows("50 0.000849 0.001000, 80 0.000849 0.001000")
	charge(stores[0], "4", 51, false) // as by a proxy that was killed then
	awaitRows("50 0.000849 0.001000, 80 0.000849 0.001000, 100 0.001000 0.001000")
}
