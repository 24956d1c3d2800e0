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

// asked decides a hit and reports whether the database was asked. A refusal holds for a second: a test
// that runs later asks the database.
func asked(t *testing.T, store *engine.Store, h ratelimit.Hit) (ratelimit.Decision, bool) {
	t.Helper()
	before := store.Stats()
	d := takeOne(t, store, h)
	after := store.Stats()
	sent := after[engine.Statements] > before[engine.Statements]
	if d.Source == ratelimit.FromBlocked && (sent || after[engine.Blocked] != before[engine.Blocked]+1) ||
		d.Source == ratelimit.FromPostgres && !sent {
		t.Fatalf("%+v, and the counts went from %+v to %+v", d, before, after)
	}
	return d, sent
}

// TestRefusedCostsAreRemembered: once a cost was refused, it and larger ones are refused
// without a statement, with the RetryAfter that the database would give. Smaller ones are
// asked about.
func TestRefusedCostsAreRemembered(t *testing.T) {
	s := newSite(t)
	for _, l := range conformance.Limits("", 6) {
		store := s.store(engine.Options{CleanupProbability: -1})
		hit := func(cost int64) ratelimit.Hit { return ratelimit.Hit{Limit: l, Key: "k", Cost: cost} }
		if d, _ := asked(t, store, hit(3)); !d.Allowed {
			t.Fatal(d)
		}
		early := time.Now()
		first, sent := asked(t, store, hit(5))
		if first.Allowed || !sent {
			t.Fatalf("%s: %+v", l.Prefix, first)
		}
		late := time.Now()
		for _, cost := range []int64{5, 6, 5} {
			before := time.Now()
			d, sent := asked(t, store, hit(cost))
			after := time.Now()
			if sent && after.Sub(early) < time.Second || d.Allowed || d.Remaining != 3 || d.Limit != 6 ||
				cost == 5 && d.Reset.Sub(first.Reset).Abs() > time.Microsecond {
				t.Errorf("%s, cost %d: asked %v, %+v after %+v", l.Prefix, cost, sent, d, first)
			}
			least, most := first.RetryAfter-after.Sub(early)-time.Microsecond,
				first.RetryAfter-before.Sub(late)+time.Microsecond
			if d.RetryAfter < least || cost == 5 && d.RetryAfter > most {
				t.Errorf("%s, cost %d: blocked for %v, the database would say from %v to %v for 5", l.Prefix,
					cost, d.RetryAfter, least, most)
			}
		}
		peek := hit(5)
		peek.Peek = true
		if d, sent := asked(t, store, peek); !sent || d.Allowed || d.Remaining != 3 {
			t.Errorf("%s: a peek is not asked about: %+v", l.Prefix, d)
		}
		if d, _ := asked(t, store, hit(7)); d.RetryAfter != ratelimit.Never || d.Allowed {
			t.Errorf("%s, cost 7 of 6: %+v", l.Prefix, d)
		}
		if d, sent := asked(t, store, hit(1)); !d.Allowed || !sent || d.Remaining != 2 {
			t.Errorf("%s: a refused cost of 5 blocks one of 1: %+v", l.Prefix, d)
		}
		// Another limit on the row is another question.
		raised := *l
		raised.Events = 100
		if d, sent := asked(t, store, ratelimit.Hit{Limit: &raised, Key: "k", Cost: 5}); !sent ||
			d.Limit != 100 {
			t.Errorf("%s: a raised limit is blocked: %+v", l.Prefix, d)
		}
		store.Close()
	}
}

// TestRefusalFromBeforeAReset: a refusal is not remembered if its answer is on its way while the
// row is reset.
func TestRefusalFromBeforeAReset(t *testing.T) {
	for _, resets := range []int{1, 3000} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore(t,
				&fakeDB{answer: func(ctx context.Context, statements []*pgdb.Statement) error {
					if strings.Contains(statements[0].SQL, "hits, remainder, expires_at) =") { // a reset
						return nil
					}
					time.Sleep(time.Minute) // the answer is on its way
					return refuse(ctx, statements)
				}}, engine.Options{CleanupProbability: -1})
			done := make(chan ratelimit.Decision)
			ask := func() { d, _, _ := tryOne(store, time.Hour, fakeHits("0")[0]); done <- d }
			go ask()
			time.Sleep(time.Second)
			for i := range resets {
				if err := store.Reset(context.Background(), time.Hour, fakeHits(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
			if d := <-done; d.Allowed || d.Source != ratelimit.FromPostgres ||
				store.Stats()[engine.BlockedKeys] != 0 {
				t.Errorf("before: %+v, and %d keys are taken for used up", d,
					store.Stats()[engine.BlockedKeys])
			}
			// What began later is remembered.
			for _, source := range []ratelimit.Source{ratelimit.FromPostgres, ratelimit.FromBlocked} {
				go ask()
				if d := <-done; d.Source != source {
					t.Errorf("%+v, want it from %v", d, source)
				}
			}
			store.Close()
		})
	}
}

// TestKnownRefusalsStandWithoutADecision: while the database can be asked, a refusal is
// remembered for a second; while no decision can be had, until it ends.
func TestKnownRefusalsStandWithoutADecision(t *testing.T) {
	for name, outage := range map[string]answerFunc{"hangs": hang, "fails": failWith(errors.New("no line"))} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{}
			store := newStore(t, db, engine.Options{CleanupProbability: -1})
			q := newCallers(store, time.Second)
			h := fakeHits("k")[0]
			db.set(refuse, nil)
			if d := takeOne(t, store, h); d.Allowed || d.RetryAfter != time.Hour {
				t.Fatalf("%s: %+v", name, d)
			}
			db.set(outage, outage)
			other, several := fakeHits("other"), fakeHits("other", "k")
			start := time.Now()
			for step, at := range []time.Duration{1500 * time.Millisecond, time.Minute, 59 * time.Minute} {
				time.Sleep(time.Until(start.Add(at)))
				began := time.Now()
				if d, _, err := tryOne(store, time.Second, h); err != nil || d.Allowed ||
					d.Source != ratelimit.FromBlocked || d.RetryAfter > time.Hour-at || d.RetryAfter <= 0 {
					t.Errorf("%s, step %d: %+v, %v", name, step, d, err)
				}
				if d, err := q.ask(h); err != nil || d[0].Allowed || d[0].Source != ratelimit.FromBlocked {
					t.Errorf("%s, step %d, in a queue: %+v, %v", name, step, d, err)
				}
				d := make([]ratelimit.Decision, 2)
				if err := store.Take(context.Background(), time.Second, several, d); err != nil ||
					d[0].Source != ratelimit.Undecided || d[1].Source != ratelimit.FromBlocked {
					t.Errorf("%s, step %d: %+v, %v", name, step, d, err)
				}
				if _, _, err := tryOne(store, time.Second, other[0]); err == nil {
					t.Errorf("%s, step %d: a decision about a row that is not known", name, step)
				}
				if step > 0 && time.Since(began) > 0 {
					t.Errorf("%s, step %d: the answers took %v", name, step, time.Since(began))
				}
			}
			time.Sleep(time.Until(start.Add(time.Hour)))
			if _, _, err := tryOne(store, time.Second, h); !errors.Is(err, ratelimit.ErrUnavailable) {
				t.Errorf("%s: when the refusal has ended: %v", name, err)
			}
			store.Close()
		})
	}
}
