package batch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Finish ends the wait of calls, each with its own Err if it has one, else with err. It
// must be called once for each call of a batch. The calls belong to their callers again
// after it, so Finish sets the elements of the slice to nil.
func Finish(q *Queue, calls []*Call, err error) {
	n := 0
	for i, c := range calls {
		calls[i] = nil
		failure := err
		if c.part != nil {
			if c.Err == nil {
				c.Err = err
			}
			if c = finishPart(c); c == nil {
				continue
			}
			failure = nil
		}
		if c.Cancellable && !atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
			continue
		}
		if c.Err == nil {
			c.Err = failure
		}
		calls[n] = c
		n++
	}
	if q.deliver != nil && n > 0 {
		callEach(q.deliver, calls[:n])
	}
	for i := 0; i < n; i++ {
		c := calls[i]
		calls[i] = nil
		c.done <- struct{}{}
	}
}

// callEach calls f with all calls. If f panics, callEach calls it with one call after the other, sets
// Err in those with which it panics again, and returns false.
func callEach(f func(calls []*Call), calls []*Call) bool {
	if PanicError(func() { f(calls) }) == nil {
		return true
	}
	for i, c := range calls {
		one := calls[i : i+1]
		if err := PanicError(func() { f(one) }); err != nil {
			c.Err = err
		}
	}
	return false
}

// PanicError runs f and returns a panic as an error.
func PanicError(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ratelimit: panic: %v", p)
		}
	}()
	f()
	return nil
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
