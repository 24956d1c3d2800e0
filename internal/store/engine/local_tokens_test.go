package engine_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// While the database is lost, a proxy has its share of what is left of a budget after what is used and held.
// When the database is back, it is charged what requests have cost, once, and holds what still runs.
func TestTokensAreLimitedByTheShareInAnOutage(t *testing.T) {
	s := newTestDB(t)
	p, db := s.openLocalProxy(2, "pgxdb", engine.Options{})
	l := budget(1000)
	hold := func(units int64) (*ratelimit.Hold, string) {
		slot := &ratelimit.Hold{}
		return slot, outcomes(p.decide(t, ratelimit.Hit{Limit: l, Key: "k", Cost: units, Hold: slot})...)
	}
	used, _ := hold(300)
	p.Settle(bill(1, l, 400, used))
	await.Within(t, 20*time.Second, "a settlement", func() bool { return s.usedAndHeld() == "400 0" })
	before, got := hold(200)
	check.Equal(t, "before the outage", got, "allowed 400 of 1000")
	p.loseDatabase(t, db)
	// The share of 500 has 200 used and 100 held.
	first, got := hold(150)
	check.Equal(t, "the first in the outage", got, "allowed 100 of 1000")
	second, got := hold(150)
	check.Equal(t, "the second", got, "allowed 0 of 1000")
	_, got = hold(1)
	check.Equal(t, "the third", got, "refused 0 of 1000")
	p.Settle(bill(2, l, 10, before))
	p.Settle(bill(3, l, 20, first))
	_, got = hold(1)
	check.Equal(t, "after two have ended", got, "allowed 438 of 1000")
	p.awaitExact(t, db, dbAnswers)
	await.Within(t, 20*time.Second, "the settlements", func() bool { return s.usedAndHeld() == "430 151" })
	p.Settle(bill(4, l, 1000, second))
	await.Within(t, 20*time.Second, "the last settlement", func() bool { return s.usedAndHeld() == "1430 1" })
}
