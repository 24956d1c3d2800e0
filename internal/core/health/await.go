package health

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// creationWait is the time after the begin of a Creation for which requests wait for the tables.
	creationWait = 5 * time.Second
	// maxAwaiting bounds the requests that wait for tables.
	maxAwaiting = 1000
)

// errCreating is the error of a request that has waited for the creation of tables.
var errCreating = fmt.Errorf("the tables are being created: %w", ratelimit.ErrOverloaded)

// Creation tells whether tables are being created on a server that answers. It is safe for concurrent use,
// and must be allocated by itself, so that it is aligned on a processor of 32 bits.
type Creation struct {
	began int64 // the Unix time in nanoseconds, or 0 if no tables are being created; atomic
}

// Begin begins a Creation, unless it has begun.
func (c *Creation) Begin() { atomic.CompareAndSwapInt64(&c.began, 0, time.Now().UnixNano()) }

// End ends a Creation.
func (c *Creation) End() { atomic.StoreInt64(&c.began, 0) }

// Await waits until done ends, for up to timeout. While c goes on, a request waits until creationWait after
// its begin, and is then refused with ratelimit.ErrOverloaded; without c, the server is then silent, and the
// error is ratelimit.ErrTimeout.
func (h *Health) Await(ctx, done context.Context, timeout time.Duration, c *Creation) error {
	defer atomic.AddInt32(&h.awaiting, -1)
	awaiting := atomic.AddInt32(&h.awaiting, 1)
	for {
		began := atomic.LoadInt64(&c.began)
		wait := timeout
		if left := creationWait - time.Since(time.Unix(0, began)); began != 0 && left < wait {
			wait = left
		}
		if began != 0 && (wait <= 0 || awaiting > maxAwaiting) {
			return errCreating
		}
		sent := time.Now()
		if err := WaitFor(ctx, done, wait); err == nil || ctx.Err() != nil {
			return err
		}
		if began == 0 && atomic.LoadInt64(&c.began) == 0 {
			_ = h.Failed(sent, timeout, pgdb.ErrNoAnswer)
			return ratelimit.ErrTimeout
		}
		h.Check(maxProbeTime) // the server may have stopped answering
		if err := h.Unavailable(); err != nil {
			return err
		}
	}
}

// WaitFor waits until done ends. It returns the cause of the end of ctx, or ratelimit.ErrTimeout after
// timeout. It uses no select because of the interpreter: see internal/testkit/imports.
func WaitFor(ctx, done context.Context, timeout time.Duration) error {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(done, cancel)
	defer stop()
	<-within.Done()
	if done.Err() != nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ratelimit.ErrTimeout
}
