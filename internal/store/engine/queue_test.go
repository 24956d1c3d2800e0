package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// callers enter a queue that belongs to the program, as the interpreted plugin does.
type callers struct{ queue *batch.Queue }

type order struct{ delivered []ratelimit.Decision }

func newCallers(store *engine.Store, timeout time.Duration) *callers {
	return &callers{store.OpenQueue(timeout, nil, func(calls []*batch.Call) {
		for _, call := range calls {
			call.Owner.(*order).delivered = append([]ratelimit.Decision(nil), call.Decisions...)
		}
	})}
}

// ask enters the queue with a call.
func (c *callers) ask(hits ...ratelimit.Hit) ([]ratelimit.Decision, error) {
	call, o := batch.NewCall(), &order{}
	call.Prepare(hits, false)
	call.Owner = o
	batch.Enter(c.queue, call)
	return o.delivered, call.Err
}

// TestAQueueFillsACallBeforeItFindsTheShard: the queue also delivers the call, unless its hits are in several
// shards. A panic is the error of the call.
func TestAQueueFillsACallBeforeItFindsTheShard(t *testing.T) {
	_, citus := newFakeCitus(t)
	delivered := 0
	q := citus.OpenQueue(time.Minute, func(calls []*batch.Call) {
		for _, c := range calls {
			c.Hits = append(c.Hits[:0], c.Owner.([]ratelimit.Hit)...)
			c.Decisions, c.Err = c.Decisions[:0], nil
		}
	}, func(calls []*batch.Call) { delivered += len(calls) })
	for _, test := range []struct {
		owner     any
		delivered int
		err       string
	}{
		{[]ratelimit.Hit{inShard(0)}, 1, ""},
		{[]ratelimit.Hit{inShard(1)}, 1, ""},
		{[]ratelimit.Hit{inShard(0), inShard(1)}, 0, ""},
		{"no hits", 0, "panic"},
	} {
		c := batch.NewCall()
		c.Owner = test.owner
		delivered = 0
		store.Ask(q, c, time.Now())
		hits, _ := test.owner.([]ratelimit.Hit)
		if delivered != test.delivered || len(c.Decisions) != len(hits) ||
			(test.err == "") != (c.Err == nil) || c.Err != nil && !strings.Contains(c.Err.Error(), test.err) {
			t.Errorf("%v: %d delivered, %v, %v", test.owner, delivered, c.Decisions, c.Err)
		}
	}
}
