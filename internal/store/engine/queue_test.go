package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// queueCaller sends calls through its own queue, like the interpreted plugin.
type queueCaller struct{ queue *batch.Queue }

// callOwner owns a call of a queueCaller.
type callOwner struct{ delivered []ratelimit.Decision }

func newQueueCaller(store *engine.Engine, timeout time.Duration) *queueCaller {
	return &queueCaller{store.OpenQueue(timeout, false, nil, func(calls []*batch.Call) {
		for _, call := range calls {
			call.Owner.(*callOwner).delivered = append([]ratelimit.Decision(nil), call.Decisions...)
		}
	})}
}

// take sends a call through the queue, and returns the delivered decisions.
func (c *queueCaller) take(hits ...ratelimit.Hit) ([]ratelimit.Decision, error) {
	call, o := batch.NewCall(), &callOwner{}
	call.Prepare(hits, false)
	call.Owner = o
	_, err := batch.Enter(context.Background(), c.queue, call, time.Now())
	return o.delivered, err
}

// A queue fills a call with its hits before the store selects the shard of the call. The queue delivers the
// decisions of a call unless its hits are in several shards. If the fill function panics, the call fails.
func TestQueueFillsCallBeforeSharding(t *testing.T) {
	_, citus := newFakeCitus(t)
	delivered := 0
	q := citus.OpenQueue(time.Minute, false, func(calls []*batch.Call) {
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
		{owner: []ratelimit.Hit{hitInShard(0)}, delivered: 1},
		{owner: []ratelimit.Hit{hitInShard(1)}, delivered: 1},
		{owner: []ratelimit.Hit{hitInShard(0), hitInShard(1)}},
		{owner: "no hits", err: "panic"},
	} {
		c := batch.NewCall()
		c.Owner = test.owner
		delivered = 0
		store.Enter(q, c, time.Now())
		hits, _ := test.owner.([]ratelimit.Hit)
		if delivered != test.delivered || len(c.Decisions) != len(hits) {
			t.Errorf("%v: %d calls delivered, decisions %v; want %d and %d", test.owner, delivered,
				c.Decisions, test.delivered, len(hits))
		}
		if (test.err == "") != (c.Err == nil) || !strings.Contains(fmt.Sprint(c.Err), test.err) {
			t.Errorf("%v: error %v, want %q", test.owner, c.Err, test.err)
		}
	}
}
