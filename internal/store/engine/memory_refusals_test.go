package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// When the database has refused a cost of 5, the store itself refuses costs of 5 and more for a second. Their
// RetryAfter ends at the same time as that of the first refusal. The store still asks the database about
// smaller costs, peeks, and another limit on the row.
func TestRefusedCostsAreRemembered(t *testing.T) {
	const database, memory = ratelimit.FromPostgres, ratelimit.FromRemembered
	for _, a := range conformance.Algorithms() {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 6, Window: time.Hour}
			raised := limit
			raised.Events = 100
			server := newSimServer([]*ratelimit.Limit{&limit}, nil)
			store := newEngine(t, &simDB{server: server, plan: &simPlan{}},
				engine.Options{DisableMigration: true})
			var first ratelimit.Decision // the first refusal, which was sent at sent
			var sent time.Time
			for i, step := range []struct {
				cost   int64
				peek   bool
				limit  *ratelimit.Limit
				source ratelimit.Source
				want   string
			}{
				{3, false, &limit, database, "allowed 3 of 6"},
				{5, false, &limit, database, "refused 3 of 6"},
				{5, false, &limit, memory, "refused 3 of 6"},
				{6, false, &limit, memory, "refused 3 of 6"},
				{7, false, &limit, memory, "refused 3 of 6"},
				{5, true, &limit, database, "refused 3 of 6"},
				{1, false, &limit, database, "allowed 2 of 6"},
				{5, false, &raised, database, "of 100"},
			} {
				start := time.Now()
				d := takeOne(t, store,
					ratelimit.Hit{Limit: step.limit, Key: "k", Cost: step.cost, Peek: step.peek})
				if d.Source != step.source || !strings.HasSuffix(outcomes(d), step.want) ||
					(d.RetryAfter == ratelimit.Never) != (step.cost > step.limit.Events) {
					t.Errorf("%v, step %d: got %+v, want %v from %v", a, i, d, step.want, step.source)
				}
				passed, apart := first.RetryAfter-d.RetryAfter, d.Reset.Sub(first.Reset).Abs()
				switch {
				case i == 1:
					first, sent = d, start
				case i == 2 && (passed < 0 || passed > time.Since(sent) || apart > time.Microsecond):
					t.Errorf("%v: refused with %+v, and %v later from memory with %+v", a, first,
						time.Since(sent), d)
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Second)
			hit := ratelimit.Hit{Limit: &limit, Key: "k", Cost: 5}
			check.Equal(t, "a second later", takeOne(t, store, hit).Source, database)
			store.Close()
			time.Sleep(time.Minute) // until all goroutines have ended
		})
	}
}

// A refusal is not remembered if its row was reset before the result arrived.
func TestRefusalBeforeResetIsDropped(t *testing.T) {
	for _, resets := range []int{1, 3000} { // 3,000 keys share 256 entries: 8 in each of 32 Stripes
		synctest.Test(t, func(t *testing.T) {
			store := newEngine(t,
				&fakeDB{answer: func(ctx context.Context, statements []*pgdb.Statement) error {
					if strings.Contains(statements[0].SQL, "hits, remainder, expires_at) =") { // a reset
						return nil
					}
					time.Sleep(time.Minute) // the result is in transit
					return refuse(ctx, statements)
				}}, engine.Options{CleanupProbability: -1})
			done := make(chan ratelimit.Decision)
			send := func() { d, _, _ := tryOne(store, time.Hour, fakeHits("0")[0]); done <- d }
			go send()
			time.Sleep(time.Second)
			for i := range resets {
				if err := store.Reset(t.Context(), time.Hour, fakeHits(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
			d, remembered := <-done, store.Stats()[engine.RememberedRefusals]
			if d.Allowed || d.Source != ratelimit.FromPostgres || remembered != 0 {
				t.Errorf("a refusal in transit during the reset: got %+v, want it from Postgres; "+
					"%d refusals are remembered, want 0", d, remembered)
			}
			// A refusal of a hit after the reset is remembered.
			for _, source := range []ratelimit.Source{ratelimit.FromPostgres, ratelimit.FromRemembered} {
				go send()
				if d := <-done; d.Source != source {
					t.Errorf("got %+v, want Source %v", d, source)
				}
			}
			store.Close()
		})
	}
}

// While the database answers, a refusal is remembered for a second. During an outage, it is remembered until
// its RetryAfter has passed.
func TestRefusalsHoldDuringOutage(t *testing.T) {
	for name, outage := range map[string]answerFunc{"hangs": hang, "fails": failWith(errors.New("no line"))} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{}
			store := newEngine(t, db, engine.Options{CleanupProbability: -1})
			q := newQueueCaller(store, time.Second)
			h := fakeHits("k")[0]
			db.set(refuse, nil)
			if d := takeOne(t, store, h); d.Allowed || d.RetryAfter != time.Hour {
				t.Fatalf("%s: got %+v, want a refusal for an hour", name, d)
			}
			db.set(outage, outage)
			other, several := fakeHits("other"), fakeHits("other", "k")
			start := time.Now()
			for step, at := range []time.Duration{
				1500 * time.Millisecond, // the store detects the outage
				time.Minute,
				59 * time.Minute, // shortly before RetryAfter
			} {
				time.Sleep(time.Until(start.Add(at)))
				start := time.Now()
				refusal, _, err := tryOne(store, time.Second, h)
				if err != nil || refusal.Allowed || refusal.Source != ratelimit.FromRemembered {
					t.Errorf("%s, step %d: got %+v, %v; want a remembered refusal", name, step, refusal, err)
				}
				if r := refusal.RetryAfter; r <= 0 || r > time.Hour-at {
					t.Errorf("%s, step %d: RetryAfter %v, want at most %v", name, step, r, time.Hour-at)
				}
				queued, err := q.take(h)
				if err != nil || queued[0].Allowed || queued[0].Source != ratelimit.FromRemembered {
					t.Errorf("%s, step %d, in a queue: got %+v, %v; want a remembered refusal", name, step,
						queued, err)
				}
				d := make([]ratelimit.Decision, 2)
				err = store.Take(t.Context(), time.Second, several, d)
				if err != nil || d[0].Source != ratelimit.Undecided ||
					d[1].Source != ratelimit.FromRemembered {
					t.Errorf("%s, step %d: got %+v, %v; want the second hit refused", name, step, d, err)
				}
				if _, _, err := tryOne(store, time.Second, other[0]); err == nil {
					t.Errorf("%s, step %d: a row without a refusal: no error, want one", name, step)
				}
				if step > 0 && time.Since(start) > 0 {
					t.Errorf("%s, step %d: the decisions took %v, want 0s", name, step, time.Since(start))
				}
			}
			time.Sleep(time.Until(start.Add(time.Hour)))
			if _, _, err := tryOne(store, time.Second, h); !errors.Is(err, ratelimit.ErrUnavailable) {
				t.Errorf("%s, after the refusal: error %v, want ErrUnavailable", name, err)
			}
			store.Close()
		})
	}
}
