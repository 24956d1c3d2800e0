package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// callers enter a queue that belongs to the program, as the interpreted plugin does.
type callers struct{ queue *batch.Queue }

type order struct {
	hits      []ratelimit.Hit
	delivered []ratelimit.Decision
}

func newCallers(store ratelimit.Store, timeout time.Duration) *callers {
	return &callers{batch.OpenQueue(store, timeout, func(calls []*batch.Call) {
		for _, call := range calls {
			call.Hits = append(call.Hits, call.Owner.(*order).hits...)
		}
	}, func(calls []*batch.Call) {
		for _, call := range calls {
			call.Owner.(*order).delivered = append([]ratelimit.Decision(nil), call.Decisions...)
		}
	})}
}

// ask enters the queue with a call.
func (c *callers) ask(hits ...ratelimit.Hit) ([]ratelimit.Decision, error) {
	call, o := batch.NewCall(), &order{hits: hits}
	call.Owner = o
	batch.Enter(c.queue, call)
	return o.delivered, call.Err
}

// TestQueuesDecideAsTakeDoes: a queue of the program's own gives the same decisions as Take.
func TestQueuesDecideAsTakeDoes(t *testing.T) {
	s := newSite(t)
	clock := conformance.NewClock()
	o := without
	o.Now = clock.Now
	asked, taken := s.store(o), s.store(o)
	q := newCallers(asked, longTime)
	for i, l := range conformance.Limits("", 6) {
		twin := *l
		twin.Prefix = "twin " + l.Prefix
		other := &ratelimit.Limit{Prefix: fmt.Sprint("other", i), Events: 4, Window: time.Minute, Durable: true}
		twinOther := *other
		twinOther.Prefix = "twin " + other.Prefix
		for step, hits := range [][]ratelimit.Hit{
			{{Key: "k", Cost: 1}}, {{Key: "k", Cost: 2}}, {{Key: "k", Cost: 9}}, {{Key: "k", Cost: 3, Peek: true}},
			{{Key: "k", Cost: 3}}, {{Key: "k", Cost: 1}}, {{Key: "k", Cost: -2}}, {{Key: "k", Cost: 1}}, {},
			{{Key: "k", Cost: 1}, {Limit: other, Key: "all", Cost: 1}}, {{Key: "k", Cost: 1}, {Limit: other, Key: "all", Cost: 1}},
			{{Key: "secret", Cost: 1, Secret: true}}, {{Key: "sha256:secret", Cost: 1}}, {{Key: "\xff\x00", Cost: 1}}, {{Key: strings.Repeat("k", 600), Cost: 1}},
		} {
			clock.Micro += 1000
			twins := append([]ratelimit.Hit(nil), hits...)
			for j := range hits {
				if hits[j].Limit == nil {
					hits[j].Limit, twins[j].Limit = l, &twin
				} else {
					twins[j].Limit = &twinOther
				}
			}
			got, err := q.ask(hits...)
			want := make([]ratelimit.Decision, len(hits))
			if wrong := taken.Take(context.Background(), longTime, twins, want); err != nil || wrong != nil || len(got) != len(want) {
				t.Fatal(err, wrong)
			}
			for j := range want {
				if got[j] != want[j] {
					t.Errorf("%s, step %d: %+v, want %+v", l.Prefix, step, got, want)
				}
			}
		}
	}
	if store, err := memory.New(memory.Options{}); err != nil || batch.OpenQueue(store, longTime, nil, nil) != nil {
		t.Error("a store in memory has a queue")
	}
}

// TestQueuesAreExact: many callers on one limit, through a queue of each of two stores.
func TestQueuesAreExact(t *testing.T) {
	s := newSite(t)
	for _, l := range conformance.Limits("", 100) {
		if l.Calendar == ratelimit.NoCalendar {
			l.Window = 365 * 24 * time.Hour
		}
		var admitted, refused, known atomic.Int64
		var group sync.WaitGroup
		for range 2 {
			q := newCallers(s.store(postgres.Options{}), longTime)
			for range 16 {
				group.Go(func() {
					for range 10 {
						switch d, err := q.ask(ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); {
						case err != nil:
							t.Error(err)
						case d[0].Allowed:
							admitted.Add(1)
						case d[0].RetryAfter <= 0:
							t.Errorf("refused with %+v", d)
						case d[0].Source == ratelimit.FromBlocked:
							known.Add(1)
						default:
							refused.Add(1)
						}
					}
				})
			}
		}
		group.Wait()
		if admitted.Load() != 100 || refused.Load() == 0 || known.Load() == 0 || refused.Load()+known.Load() != 220 {
			t.Errorf("%s: %d admitted, %d refused, %d without asking; want 100, and 220 in all", l.Prefix, admitted.Load(), refused.Load(), known.Load())
		}
	}
}

// TestQueuesWithoutADatabase: calls fail as those of Take do, at once if it is known that
// they will.
func TestQueuesWithoutADatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, &fakeDB{answer: hang, probe: hang}, postgres.Options{CleanupProbability: -1})
		q := newCallers(store, 100*time.Millisecond)
		began := time.Now()
		if _, err := q.ask(fakeHits("k")...); !errors.Is(err, ratelimit.ErrTimeout) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(time.Second)
		began = time.Now()
		if _, err := q.ask(fakeHits("k")...); !errors.Is(err, ratelimit.ErrUnavailable) || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		store.Close()
		if _, err := q.ask(fakeHits("k")...); !errors.Is(err, ratelimit.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}
