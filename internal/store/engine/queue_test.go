package engine_test

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
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
