package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A settlement takes effect later, or counts as lost: before the database answers for the first time, while
// its tables are missing, and when the store is closed.
func TestSettlementsAreKeptOrCounted(t *testing.T) {
	missing := func(_ context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			failStatement(s, "42P01", "the table does not exist")
		}
		return nil
	}
	bill := func(id string) *batch.Bill {
		return &batch.Bill{ID: id, Charges: []batch.Charge{{Limit: budget(1), Key: "k", RealUnits: 1}}}
	}
	for name, test := range map[string]struct {
		db    *emptyDB
		after answerFunc // the answers from 1 s on
		want  int64
	}{
		"never answers":        {&emptyDB{}, nil, 2},
		"tables are dropped":   {&emptyDB{answers: time.Hour, creation: time.Second / 2}, missing, 4},
		"answers no more":      {&emptyDB{answers: time.Hour, creation: time.Second / 2}, hang, 4},
		"answers in the end":   {&emptyDB{answers: time.Hour, locked: 3 * time.Second}, nil, 2},
		"closed before tables": {&emptyDB{answers: time.Hour, locked: time.Hour}, nil, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			test.db.start = time.Now()
			store := openStore(t, test.db, engine.Options{CleanupProbability: -1}, nil)
			store.Prepare()
			time.Sleep(time.Second)
			decisions := make([]ratelimit.Decision, 1)
			hit := fakeHits("k")[0]
			decided := store.Take(t.Context(), time.Second/10, []ratelimit.Hit{hit}, decisions) == nil
			test.db.set(test.after, nil)
			_ = store.Take(t.Context(), time.Second/10, fakeHits("other"), make([]ratelimit.Decision, 1))
			if decided && test.after != nil {
				store.Settle(&batch.Bill{Charges: []batch.Charge{*settlementOf(hit, decisions[0], 1)}})
			}
			store.Settle(bill("1"))
			time.Sleep(5 * time.Second)
			if decided && test.after != nil {
				store.Settle(&batch.Bill{Charges: []batch.Charge{*settlementOf(hit, decisions[0], 1)}})
			}
			store.Settle(bill("2"))
			store.Close()
			stats := store.Stats()
			if got := stats[engine.Settled] + stats[engine.Unsettled]; got != test.want {
				t.Errorf("%s: %d of %d settlements count", name, got, test.want)
			}
		})
	}
}
