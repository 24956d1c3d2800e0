package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// callers enter a queue that belongs to the program, as the interpreted plugin does.
type callers struct{ queue *batch.Queue }

type order struct {
	hits      []ratelimit.Hit
	delivered []ratelimit.Decision
}

func newCallers(store *engine.Store, timeout time.Duration) *callers {
	return &callers{store.OpenQueue(timeout, func(calls []*batch.Call) {
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
}
