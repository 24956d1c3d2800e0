package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestRefundBesideABlockedRow: a hit that gives back does so each time, also
// beside one that is known to be refused.
func TestRefundBesideABlockedRow(t *testing.T) {
	for _, queued := range []bool{false, true} {
		var mu sync.Mutex
		refunds := 0
		store := ratelimit.NewPostgres(&fakeDB{answer: func(_ context.Context, statements []*ratelimit.Statement) error {
			for _, s := range statements {
				if s.Row == nil {
					mu.Lock()
					refunds++
					mu.Unlock()
					continue
				}
				for i, key := range s.Args[2].([]string) {
					row := grantedRow(int64(i+1), 0, 1)
					if key == "full" {
						row = grantedRow(int64(i+1), 0, 5)
					}
					if err := s.Row(row); err != nil {
						return err
					}
				}
			}
			return nil
		}}, ratelimit.PostgresOptions{CleanupProbability: -1})
		hits := fakeHits("back", "full")
		hits[0].Cost = -1
		desk := newDesk(store, time.Second)
		for round := 1; round <= 3; round++ {
			d := make([]ratelimit.Decision, 2)
			var err error
			if queued {
				o := &order{}
				err = desk.ask(o, hits...)
				copy(d, o.delivered)
			} else {
				err = store.Take(context.Background(), time.Second, hits, d)
			}
			if err != nil || !d[0].Allowed || d[1].Allowed {
				t.Errorf("queued %v, round %d: %+v, %v", queued, round, d, err)
			}
			if refunds != round {
				t.Errorf("queued %v: %d refunds in %d rounds", queued, refunds, round)
			}
		}
		store.Close()
	}
}

// TestRefusalFromBeforeAReset: a refusal whose answer is on its way while the row
// is forgotten says nothing about it any more; nor does one of any other row, once
// so many are forgotten that nobody can tell which.
func TestRefusalFromBeforeAReset(t *testing.T) {
	for _, resets := range []int{1, 3 * ratelimit.MaxClears} {
		synctest.Test(t, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: func(ctx context.Context, statements []*ratelimit.Statement) error {
				if strings.Contains(statements[0].SQL, "DELETE") {
					return nil
				}
				err := rows(grantedRow(1, 0, 5))(ctx, statements)
				time.Sleep(time.Minute) // the answer is on its way
				return err
			}}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			var group sync.WaitGroup
			group.Add(1)
			go func() {
				defer group.Done()
				if d := takeOne(t, store, fakeHits("0")[0]); d.Allowed || d.Source != ratelimit.FromPostgres {
					t.Errorf("before: %+v", d)
				}
			}()
			time.Sleep(time.Second)
			for i := range resets {
				if err := store.Reset(context.Background(), time.Minute, fakeHits(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
			group.Wait()
			if n := store.Stats().BlockedKeys; n != 0 {
				t.Errorf("%d keys are taken for used up", n)
			}
			// What began later is believed.
			for _, source := range []ratelimit.Source{ratelimit.FromPostgres, ratelimit.FromBlocked} {
				if d := takeOne(t, store, fakeHits("0")[0]); d.Source != source {
					t.Errorf("%+v, want it from %v", d, source)
				}
			}
		})
	}
}

// TestBlockedAreForgotten once none is believed any more, also if nobody asks.
func TestBlockedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := ratelimit.NewPostgres(&fakeDB{answer: rows(grantedRow(1, 0, 5))}, ratelimit.PostgresOptions{CleanupProbability: -1})
		defer store.Close()
		for i := range 100 {
			takeOne(t, store, fakeHits(fmt.Sprint(i))[0])
		}
		time.Sleep(999 * time.Millisecond)
		if n := store.Stats().BlockedKeys; n != 100 {
			t.Errorf("%d of 100 keys are known to be used up", n)
		}
		time.Sleep(time.Millisecond)
		if n := store.Stats().BlockedKeys; n != 0 {
			t.Errorf("%d keys are taken for used up after a second", n)
		}
	})
}
