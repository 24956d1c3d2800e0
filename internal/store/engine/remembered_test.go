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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// takeAndReportSent takes a hit, and reports whether the store sent a statement. A store remembers a refusal
// for a second, and sends a statement again after that.
func takeAndReportSent(t *testing.T, store *engine.Engine, h ratelimit.Hit) (ratelimit.Decision, bool) {
	t.Helper()
	before := store.Stats()
	d := takeOne(t, store, h)
	after := store.Stats()
	sent := after[engine.Statements] > before[engine.Statements]
	refused := after[engine.RefusedFromMemory] - before[engine.RefusedFromMemory]
	if d.Source == ratelimit.FromRemembered && (sent || refused != 1) {
		t.Fatalf("a remembered refusal: got %d refusals from memory, statement %v; want 1, false", refused,
			sent)
	}
	if d.Source == ratelimit.FromPostgres && !sent {
		t.Fatal("a decision of the database: got no statement, want one")
	}
	return d, sent
}

// When the database has refused a cost of 5, the store itself refuses costs of 5 and more for a second. Their
// RetryAfter ends at the same time as that of the first refusal. The store still asks the database about
// smaller costs, peeks, and another limit on the row.
func TestRefusedCostsAreRemembered(t *testing.T) {
	s := newTestDB(t)
	for _, l := range conformance.Limits("", 6) {
		store := s.openEngine(engine.Options{CleanupProbability: -1})
		hit := func(cost int64) ratelimit.Hit { return ratelimit.Hit{Limit: l, Key: "k", Cost: cost} }
		if d, _ := takeAndReportSent(t, store, hit(3)); !d.Allowed {
			t.Fatalf("%s: got %+v, want cost 3 of 6 allowed", l.Prefix, d)
		}
		early := time.Now()
		first, sent := takeAndReportSent(t, store, hit(5))
		if first.Allowed || !sent {
			t.Fatalf("%s: got %+v, sent %v; want a refusal by the database", l.Prefix, first, sent)
		}
		late := time.Now()
		for _, cost := range []int64{5, 6, 5} {
			before := time.Now()
			d, sent := takeAndReportSent(t, store, hit(cost))
			after := time.Now()
			if sent && after.Sub(early) < time.Second {
				t.Errorf("%s, cost %d: sent within a second, want a decision from memory", l.Prefix, cost)
			}
			if got := outcomes(d); got != "refused 3 of 6" {
				t.Errorf("%s, cost %d: got %s, want refused 3 of 6", l.Prefix, cost, got)
			}
			if cost == 5 && d.Reset.Sub(first.Reset).Abs() > time.Microsecond {
				t.Errorf("%s, cost 5: Reset %v, want %v", l.Prefix, d.Reset, first.Reset)
			}
			minRetry := first.RetryAfter - after.Sub(early) - time.Microsecond
			maxRetry := first.RetryAfter - before.Sub(late) + time.Microsecond
			if d.RetryAfter < minRetry || cost == 5 && d.RetryAfter > maxRetry {
				t.Errorf("%s, cost %d: RetryAfter %v, want %v to %v", l.Prefix, cost, d.RetryAfter, minRetry,
					maxRetry)
			}
		}
		peek := hit(5)
		peek.Peek = true
		if d, sent := takeAndReportSent(t, store, peek); !sent || outcomes(d) != "refused 3 of 6" {
			t.Errorf("%s: peek of 5: sent %v, got %+v, want a refusal by the database", l.Prefix, sent, d)
		}
		if d, _ := takeAndReportSent(t, store, hit(7)); d.RetryAfter != ratelimit.Never || d.Allowed {
			t.Errorf("%s, cost 7 of 6: got %+v, want a refusal with RetryAfter Never", l.Prefix, d)
		}
		if d, sent := takeAndReportSent(t, store, hit(1)); !sent || outcomes(d) != "allowed 2 of 6" {
			t.Errorf("%s, cost 1 after a refused 5: sent %v, got %+v, want it allowed", l.Prefix, sent, d)
		}
		// A refusal by one limit does not apply to another limit on the row.
		raised := *l
		raised.Events = 100
		d, sent := takeAndReportSent(t, store, ratelimit.Hit{Limit: &raised, Key: "k", Cost: 5})
		if !sent || d.Quota != 100 {
			t.Errorf("%s, raised to 100: sent %v, got %+v, want it from the database", l.Prefix, sent, d)
		}
		store.Close()
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
